"""The latest messages: what the toasts said."""

import time
from collections.abc import Iterable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from grpo_tui.app.text.safe_text import wrap
from grpo_tui.app.tui.messages import Said
from grpo_tui.app.tui.textual_private.screens import Dialog

WIDTH, INDENT, MOST_LINES = 100, len("12:34:56 ✗ "), 40
MARKS = {"error": ("✗", "$error"), "warning": ("▲", "$warning")}


class LatestScreen(Dialog[None]):
    """Messages, the newest first."""

    DEFAULT_CSS = """
    LatestScreen { align: center middle; }
    LatestScreen > VerticalScroll {
        width: 100; max-width: 96%; height: auto; max-height: 80%; padding: 0 1;
        border: round $border; background: $background; border-title-color: $headline;
        border-subtitle-color: $text-muted; scrollbar-size-vertical: 1;
    }
    LatestScreen Static { width: 100%; color: $foreground; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,exclamation_mark,enter", "close", "close", id="messages.close",
                tooltip="Back to the screen"),
        Binding("j", "scroll(1)", "down", id="messages.down", show=False, tooltip="Older messages"),
        Binding("k", "scroll(-1)", "up", id="messages.up", show=False, tooltip="Newer messages"),
    ]  # fmt: skip

    def __init__(self, said: Iterable[Said]) -> None:
        super().__init__()
        self._said = tuple(said)[::-1]

    def compose(self) -> ComposeResult:
        with VerticalScroll() as box:
            box.border_title = "messages"
            box.border_subtitle = "newest first   ↑↓ browse   esc close"
            if not self._said:
                yield Static("Nothing has been said yet.")
            width = min(WIDTH, int(0.96 * self.app.size.width)) - 5  # in the frame, beside the bar
            for one in self._said:
                mark, colour = MARKS.get(one.severity, ("·", "$text-muted"))
                at = time.strftime("%H:%M:%S", time.localtime(one.at))
                said = ("\n" + " " * INDENT).join(wrap(one.text, width - INDENT, MOST_LINES))
                yield Static(Content.assemble((f"{at} ", "$text-muted"), (f"{mark} ", colour),
                                              said))  # fmt: skip

    def on_mount(self) -> None:
        """Focus the list, so that the arrow keys work at once."""
        self.query_one(VerticalScroll).focus()

    def action_scroll(self, by: int) -> None:
        """Scroll by one line."""
        self.query_one(VerticalScroll).scroll_relative(y=by, animate=False)

    def action_close(self) -> None:
        """Close the list."""
        self.dismiss(None)
