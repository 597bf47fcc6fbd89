"""Watch: the run as it goes on, and why the numbers move."""

from app.tui.screens.watch.screen import WatchScreen

__all__ = ["WatchScreen"]
