"""Questions answered with lines of text."""

from collections.abc import Callable, Mapping

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Input, Static

from grpo_tui.app.text.safe_text import safe
from grpo_tui.app.tui.dialogs.dialog import AppScreen, Dialog
from grpo_tui.app.tui.keys import bindings
from grpo_tui.app.tui.widgets.field import Field


class InputDialog(Dialog[list[str] | None]):
    """Return the texts of the fields, which have a hint each, or None if dismissed."""

    DEFAULT_CSS = """
    InputDialog { align: center middle; }
    InputDialog > Vertical {
        width: 72; max-width: 96%; height: auto; padding: 1 2;
        border: round $border; background: $background; border-title-color: $headline;
        border-subtitle-color: $text-muted;
    }
    InputDialog Static { color: $text-muted; margin-bottom: 1; }
    InputDialog Input { border: none; height: 1; padding: 0; background: $panel; }
    InputDialog Input:focus { border: none; }
    InputDialog.-several Static { margin-bottom: 0; }
    InputDialog.-several Input { margin-bottom: 1; }
    """
    BINDINGS = bindings("ask")

    def __init__(self, title: str, fields: Mapping[str, Field]) -> None:
        super().__init__()
        self._title, self._fields = title, fields
        self.set_class(len(fields) > 1, "-several")

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = self._title
            box.border_subtitle = (
                "⇥ next field   " * (len(self._fields) > 1) + "⏎ done   esc cancel"
            )
            for hint, field in self._fields.items():
                yield Static(safe(hint, "\n"), markup=False)
                yield field

    @on(Input.Submitted)
    def submit(self) -> None:
        self.dismiss([field.value for field in self._fields.values()])


def ask_text(
    screen: AppScreen, title: str, hint: str, then: Callable[[str], None], text: str = ""
) -> None:
    """Ask for a text, and go on with it unless it is empty."""

    def take(texts: list[str] | None) -> None:
        if typed := "".join(texts or ()).strip():
            then(typed)

    screen.app.push_screen(InputDialog(title, {hint: Field(text)}), take)
