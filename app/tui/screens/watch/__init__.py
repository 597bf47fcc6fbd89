"""Watch: the run while it trains, and why the numbers move."""

from app.tui.screens.watch.screen import WatchScreen

__all__ = ["WatchScreen"]
