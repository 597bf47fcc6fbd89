"""Runs: every run kept; find, mark, open, control."""

from app.tui.screens.runs.screen import RunsScreen

__all__ = ["RunsScreen"]
