"""Checks of this machine, for `grpo-tui doctor`."""

from grpo_tui.app.health.checks import Check, Level

__all__ = ["Check", "Level"]
