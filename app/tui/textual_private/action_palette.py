"""Textual's command palette with our own input field."""

from textual.app import ComposeResult
from textual.command import CommandInput, CommandPalette

from app.tui.widgets.field import Field


class ActionField(CommandInput, Field):
    """The palette's search field; Textual's style sheets match the first base class."""


class ActionPalette(CommandPalette):
    """The command palette, listing every action."""

    def compose(self) -> ComposeResult:
        """Textual's widgets, with its field replaced."""
        for widget in super().compose():
            if isinstance(widget, CommandInput):
                yield ActionField(placeholder=self._placeholder, select_on_focus=False)
            else:
                yield widget
