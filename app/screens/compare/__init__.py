"""Compare."""

from app.screens.compare.screen import CompareScreen

__all__ = ["CompareScreen"]
