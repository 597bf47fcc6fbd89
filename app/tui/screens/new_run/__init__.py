"""New run: settings as a form, checked, tried, priced, launched."""

from app.tui.screens.new_run.screen import NewRunScreen

__all__ = ["NewRunScreen"]
