"""Runs."""

from app.screens.runs.screen import RunsScreen

__all__ = ["RunsScreen"]
