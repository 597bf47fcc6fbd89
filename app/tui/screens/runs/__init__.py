"""Runs: every stored run, to find, mark, open and control."""

from app.tui.screens.runs.screen import RunsScreen

__all__ = ["RunsScreen"]
