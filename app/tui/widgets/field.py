"""The fields of the workbench: they hold any text, and draw what a terminal would obey as signs."""

from typing import Any

from rich.highlighter import Highlighter
from rich.text import Text
from textual.widgets import Input, TextArea

from grpo_tui.app.text.safe_text import safe_by_character


class _Signs(Highlighter):
    """Draws one sign for each character that a terminal would obey."""

    def highlight(self, text: Text) -> None:
        text.plain = safe_by_character(text.plain)


def without_controls(text: str) -> str:
    """The text with a space for each line end, control or invisible character."""
    return "".join(char if char.isprintable() else " " for char in text)


class Field(Input):
    """An input field that keeps pasted text on one line, without control characters."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"highlighter": _Signs(), **kwargs})

    def insert_text_at_cursor(self, text: str) -> None:
        """Type or paste; overrides Textual."""
        super().insert_text_at_cursor(without_controls(text))

    def action_copy(self) -> None:
        """Copy the selection and say so; overrides Textual."""
        super().action_copy()
        self.notify(f"Sent {len(self.selected_text):,} characters to the terminal's clipboard.")

    def replace(self, text: str, start: int, end: int) -> None:
        """Paste over the selection; overrides Textual."""
        super().replace(without_controls(text), start, end)


class TextField(TextArea):
    """A field of several lines."""

    def get_line(self, line_index: int) -> Text:
        """A line as it is drawn; overrides Textual."""
        return Text(safe_by_character(self.document.get_line(line_index)), end="", no_wrap=True)
