"""A page of text over a screen: help, the latest messages, why a run has failed."""

from collections.abc import Iterable
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from grpo_tui.app.tui.dialogs.dialog import Dialog
from grpo_tui.app.tui.keys import bind, hidden

WIDTH = 100


class Page(Dialog[None]):
    """A title and texts, which scroll."""

    DEFAULT_CSS = """
    Page { align: center middle; }
    Page > VerticalScroll {
        width: 100; max-width: 96%; height: auto; max-height: 90%; padding: 0 1;
        border: round $border; background: $background; border-title-color: $headline;
        border-subtitle-color: $text-muted; scrollbar-size-vertical: 1;
    }
    Page Static { width: 100%; color: $foreground; }
    """
    BINDINGS: ClassVar = [
        bind("escape,q,enter,question_mark,f1,exclamation_mark", "dismiss", "close", "page.close",
             "Back to where you were"),
        bind("y", "copy", "copy", "page.copy", "Copy what is selected, or all of it"),
        hidden("j", "move(1, 0)", "down", "move.down", "One line down"),
        hidden("k", "move(-1, 0)", "up", "move.up", "One line up"),
    ]  # fmt: skip
    heading: ClassVar[str]
    hint: ClassVar[str] = "↑↓ scroll   y copy   esc close"

    def texts(self, width: int) -> Iterable[Content]:
        """The texts, which are safe, for a width in cells."""
        raise NotImplementedError

    def compose(self) -> ComposeResult:
        with VerticalScroll() as box:
            box.border_title, box.border_subtitle = self.heading, self.hint
            # in the frame, beside the scroll bar
            yield from map(Static, self.texts(min(WIDTH, int(0.96 * self.app.size.width)) - 5))

    def action_copy(self) -> None:
        """Copy what is selected, or all of it."""
        app: Any = self.app
        texts = (str(text.content) for text in self.query(Static))
        app.copy(self.get_selected_text() or "\n".join(texts))

    def on_mount(self) -> None:
        """Focus the text, so that the arrow keys scroll at once."""
        self.query_one(VerticalScroll).focus()

    def action_move(self, rows: int, _columns: int) -> None:
        """Scroll."""
        self.query_one(VerticalScroll).scroll_relative(y=rows, animate=False)
