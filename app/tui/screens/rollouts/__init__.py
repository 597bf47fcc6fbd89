"""Rollouts: any step, group or answer, down to the numbers of one token."""

from grpo_tui.app.tui.screens.rollouts.screen import RolloutsScreen

__all__ = ["RolloutsScreen"]
