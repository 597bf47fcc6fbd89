"""The Compare screen."""

from app.tui.screens.compare.screen import CompareScreen

__all__ = ["CompareScreen"]
