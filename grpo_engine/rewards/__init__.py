"""Reward functions with TRL's signature, run in a separate process."""
