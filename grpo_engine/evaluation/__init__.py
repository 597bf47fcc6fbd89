"""Held-out evaluation and the prompts that are followed through a run."""
