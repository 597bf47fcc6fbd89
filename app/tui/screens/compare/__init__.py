"""The Compare screen."""

from grpo_tui.app.tui.screens.compare.screen import CompareScreen

__all__ = ["CompareScreen"]
