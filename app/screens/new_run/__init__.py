"""New run."""

from app.screens.new_run.screen import NewRunScreen

__all__ = ["NewRunScreen"]
