"""The one-line input field used by every question of the workbench."""

from textual.widgets import Input


def one_line(text: str) -> str:
    """The text with a space for each line end, control or invisible character."""
    return "".join(char if char.isprintable() else " " for char in text)


class Field(Input):
    """An input field that keeps pasted text on one line, without control characters."""

    submits = ""  # what ⏎ does, for the key line

    def insert_text_at_cursor(self, text: str) -> None:
        """Type or paste; overrides Textual."""
        super().insert_text_at_cursor(one_line(text))

    def replace(self, text: str, start: int, end: int) -> None:
        """Paste over the selection; overrides Textual."""
        super().replace(one_line(text), start, end)
