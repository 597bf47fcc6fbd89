"""The latest messages: what the toasts said."""

import time
from collections.abc import Iterable, Iterator

from textual.content import Content

from grpo_tui.app.text.safe_text import wrap
from grpo_tui.app.tui.dialogs.page import Page
from grpo_tui.app.tui.messages import Said

INDENT, MAX_LINES = len("12:34:56 ✗ "), 40
MARKS = {"error": ("✗", "$error"), "warning": ("▲", "$warning")}


class LatestScreen(Page):
    """Messages, the newest first."""

    heading = "messages"

    def __init__(self, messages: Iterable[Said]) -> None:
        super().__init__()
        self._messages = tuple(messages)[::-1]

    def texts(self, width: int) -> Iterator[Content]:
        """Each message with its time."""
        if not self._messages:
            yield Content("No messages.")
        for message in self._messages:
            mark, colour = MARKS.get(message.severity, ("·", "$text-muted"))
            at = time.strftime("%H:%M:%S", time.localtime(message.at))
            lines = wrap(message.text, width - INDENT, MAX_LINES)
            yield Content.assemble((f"{at} ", "$text-muted"), (f"{mark} ", colour),
                                   ("\n" + " " * INDENT).join(lines))  # fmt: skip
