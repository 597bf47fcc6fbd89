"""Textual's command palette with our own field."""

from textual.app import ComposeResult
from textual.command import CommandInput, CommandPalette

from app.tui.widgets.field import Field


class ActionField(CommandInput, Field):
    """The search field of the palette; Textual's style sheets go by the first base."""


class ActionPalette(CommandPalette):
    """Every action by its name."""

    def compose(self) -> ComposeResult:
        """Textual's widgets, with its field replaced."""
        for widget in super().compose():
            if isinstance(widget, CommandInput):
                yield ActionField(placeholder=self._placeholder, select_on_focus=False)
            else:
                yield widget
