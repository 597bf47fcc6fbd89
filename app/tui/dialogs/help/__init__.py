"""Help on what has the focus."""

from app.tui.dialogs.help.screen import HelpScreen

__all__ = ["HelpScreen"]
