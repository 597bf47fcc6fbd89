"""The search line: hidden until `/`, keeps its text, closed by esc."""

from dataclasses import dataclass

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Label

from grpo_tui.app.tui.widgets.field import Field


class FindBar(Horizontal):
    """One line above the key bar."""

    DEFAULT_CSS = """
    FindBar {
        height: 1; dock: bottom; margin-bottom: 1; display: none; background: $background;
    }
    FindBar Label { width: auto; color: $accent; }
    FindBar Input { width: 1fr; border: none; height: 1; padding: 0; background: $background; }
    FindBar Input:focus { border: none; }
    """

    @dataclass
    class Changed(Message):
        """The search text has changed."""

        text: str

    def __init__(self, hint: str = "find") -> None:
        super().__init__()
        self.field = Field(placeholder=hint)

    def compose(self) -> ComposeResult:
        yield Label(" / ")
        yield self.field

    def open(self) -> None:
        """Show the line and focus it."""
        self.display = True
        self.field.focus()

    def close(self) -> None:
        """Close the search, and leave its field."""
        typing, self.display = self.has_focus_within, False
        self.field.value = ""
        if typing:
            self.screen.focus_next("Panel")

    @on(Input.Changed)
    def search(self, event: Input.Changed) -> None:
        """Search while the user types."""
        event.stop()
        self.post_message(self.Changed(event.value))

    @on(Input.Submitted)
    def finish(self, event: Input.Submitted) -> None:
        """Leave the field and keep the search."""
        event.stop()
        self.screen.set_focus(None)
        self.screen.focus_next("Panel")
