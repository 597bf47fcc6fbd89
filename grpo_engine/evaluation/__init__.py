"""Held-out evaluation, and pinned prompts that are sampled through a whole run."""
