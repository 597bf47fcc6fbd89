"""The palette of all actions: Textual's, with a field of ours."""

from textual.app import ComposeResult
from textual.command import CommandInput, CommandPalette

from app.tui.widgets.field import Field


class ActionField(CommandInput, Field):
    """What one types to find an action; Textual's style sheets go by the first base."""


class ActionPalette(CommandPalette):
    """Every action by its name."""

    def compose(self) -> ComposeResult:
        """Textual's widgets, the field exchanged."""
        for widget in super().compose():
            if isinstance(widget, CommandInput):
                yield ActionField(placeholder=self._placeholder, select_on_focus=False)
            else:
                yield widget
