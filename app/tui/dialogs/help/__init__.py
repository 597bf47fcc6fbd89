"""Help on the focused element."""

from app.tui.dialogs.help.screen import HelpScreen

__all__ = ["HelpScreen"]
