"""The field of one line that every question of the workbench is typed into."""

from textual.widgets import Input


def one_line(text: str) -> str:
    """The text with a space for each line end, control or invisible character."""
    return "".join(char if char.isprintable() else " " for char in text)


class Field(Input):
    """What is pasted keeps its words and stays on one line; a terminal obeys none of it."""

    def insert_text_at_cursor(self, text: str) -> None:
        """Type or paste; Textual's hook."""
        super().insert_text_at_cursor(one_line(text))

    def replace(self, text: str, start: int, end: int) -> None:
        """Paste over what is selected; Textual's hook."""
        super().replace(one_line(text), start, end)
