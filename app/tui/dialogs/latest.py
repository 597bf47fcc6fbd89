"""The latest messages: what the toasts said."""

import time
from collections.abc import Iterable
from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from grpo_tui.app.text.safe_text import wrap
from grpo_tui.app.tui.keys import bind, hidden
from grpo_tui.app.tui.messages import Said
from grpo_tui.app.tui.textual_private.screens import Dialog

WIDTH, INDENT, MAX_LINES = 100, len("12:34:56 ✗ "), 40
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
    BINDINGS: ClassVar = [
        bind("escape,q,exclamation_mark,enter", "dismiss", "close", "messages.close",
             "Back to the screen"),
        hidden("j", "move(1, 0)", "down", "move.down", "Older messages"),
        hidden("k", "move(-1, 0)", "up", "move.up", "Newer messages"),
    ]  # fmt: skip

    def __init__(self, messages: Iterable[Said]) -> None:
        super().__init__()
        self._messages = tuple(messages)[::-1]

    def compose(self) -> ComposeResult:
        with VerticalScroll() as box:
            box.border_title = "messages"
            box.border_subtitle = "newest first   ↑↓ browse   esc close"
            if not self._messages:
                yield Static("No messages.")
            width = min(WIDTH, int(0.96 * self.app.size.width)) - 5  # in the frame, beside the bar
            for message in self._messages:
                mark, colour = MARKS.get(message.severity, ("·", "$text-muted"))
                at = time.strftime("%H:%M:%S", time.localtime(message.at))
                lines = wrap(message.text, width - INDENT, MAX_LINES)
                yield Static(Content.assemble((f"{at} ", "$text-muted"), (f"{mark} ", colour),
                                              ("\n" + " " * INDENT).join(lines)))  # fmt: skip

    def on_mount(self) -> None:
        """Focus the list, so that the arrow keys work at once."""
        self.query_one(VerticalScroll).focus()

    def action_move(self, rows: int, _columns: int) -> None:
        """Scroll by a line."""
        self.query_one(VerticalScroll).scroll_relative(y=rows, animate=False)
