"""Help on the focused element."""

from grpo_tui.app.tui.dialogs.help.screen import HelpScreen

__all__ = ["HelpScreen"]
