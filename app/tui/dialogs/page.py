"""A page of text over a screen: help, the latest messages, why a run has failed."""

from collections.abc import Iterable
from typing import Any

from textual.app import App, ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from grpo_tui.app.tui.dialogs.dialog import Dialog
from grpo_tui.app.tui.keys import bindings


def page_width(app: App[Any]) -> int:
    """The width of the texts, in the frame and a cell from the scroll bar."""
    return min(100, int(0.96 * app.size.width)) - 6


class PageDialog(Dialog[None]):
    """A title and texts, which scroll."""

    DEFAULT_CSS = """
    PageDialog { align: center middle; }
    PageDialog > VerticalScroll {
        width: 100; max-width: 96%; height: auto; max-height: 90%; padding: 0 1;
        border: round $border; background: $background; border-title-color: $headline;
        border-subtitle-color: $text-muted; scrollbar-size-vertical: 1;
    }
    PageDialog Static { width: 100%; padding-right: 1; color: $foreground; }
    """
    BINDINGS = bindings("page")
    hint = "↑↓ scroll   y copy   esc close"

    def __init__(self, heading: str, texts: Iterable[Content]) -> None:
        super().__init__()
        self._heading, self._texts = heading, texts

    def compose(self) -> ComposeResult:
        with VerticalScroll() as box:
            box.border_title, box.border_subtitle = self._heading, self.hint
            yield Static(Content("\n").join(self._texts))

    def action_copy(self) -> None:
        """Copy what is selected, or all of it."""
        text = self.get_selected_text() or str(self.query_one(Static).content)
        self.workbench.copy(text)

    def on_mount(self) -> None:
        """Focus the text, so that the arrow keys scroll at once."""
        self.query_one(VerticalScroll).focus()

    def action_move(self, rows: int, _columns: int) -> None:
        """Scroll."""
        self.query_one(VerticalScroll).scroll_relative(y=rows, animate=False)
