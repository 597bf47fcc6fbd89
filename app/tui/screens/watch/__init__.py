"""Watch: a run while it trains, and why its numbers move."""

from grpo_tui.app.tui.screens.watch.screen import WatchScreen

__all__ = ["WatchScreen"]
