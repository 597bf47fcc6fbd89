"""Runs: every stored run, to find, mark, open and control."""

from grpo_tui.app.tui.screens.runs.screen import RunsScreen

__all__ = ["RunsScreen"]
