"""A question answered with one line of text."""

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Input, Static

from grpo_tui.app.text.safe_text import safe
from grpo_tui.app.tui.dialogs.dialog import Dialog
from grpo_tui.app.tui.keys import bind
from grpo_tui.app.tui.widgets.field import Field


class Ask(Dialog[str | None]):
    """Return the typed text, or None if dismissed."""

    DEFAULT_CSS = """
    Ask { align: center middle; }
    Ask > Vertical {
        width: 72; max-width: 96%; height: auto; padding: 1 2;
        border: round $border; background: $background; border-title-color: $headline;
        border-subtitle-color: $text-muted;
    }
    Ask Static { color: $text-muted; margin-bottom: 1; }
    Ask Input { border: none; height: 1; padding: 0; background: $panel; }
    Ask Input:focus { border: none; }
    """
    BINDINGS: ClassVar = [
        bind("escape", "dismiss", "cancel", "ask.cancel", "Change nothing"),
    ]

    def __init__(self, title: str, hint: str, text: str = "") -> None:
        super().__init__()
        self._title, self._hint, self._text = title, hint, text

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = self._title
            box.border_subtitle = "⏎ done   esc cancel"
            yield Static(safe(self._hint, "\n"), markup=False)
            yield Field(self._text)

    @on(Input.Submitted)
    def submit(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)
