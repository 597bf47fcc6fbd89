"""Held-out evaluation, and pinned prompts that are sampled throughout a run."""
