"""Rollouts."""

from app.screens.rollouts.screen import RolloutsScreen

__all__ = ["RolloutsScreen"]
