"""Help on what has the focus."""

from app.screens.help.screen import HelpScreen

__all__ = ["HelpScreen"]
