"""Checks of this machine, as facts for `grpo-tui doctor`."""

from grpo_tui.app.health.facts import Fact, Level

__all__ = ["Fact", "Level"]
