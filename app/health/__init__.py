"""Checks of this machine, for `grpo-tui doctor`."""
