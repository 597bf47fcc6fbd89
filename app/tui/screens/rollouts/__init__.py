"""Rollouts: any step, any group, any answer, down to the numbers of one token."""

from app.tui.screens.rollouts.screen import RolloutsScreen

__all__ = ["RolloutsScreen"]
