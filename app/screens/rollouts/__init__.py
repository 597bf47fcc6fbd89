"""Rollouts: any step, any group, any answer, down to the numbers of one token."""

from app.screens.rollouts.screen import RolloutsScreen

__all__ = ["RolloutsScreen"]
