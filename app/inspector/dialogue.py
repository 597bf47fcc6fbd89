"""A dialogue's text by author: the model's turns, and the environment's replies to them."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from grpo_engine.events import Span
from grpo_tui.app.text.safe_text import ELLIPSIS, clip, clip_start, safe, wrap

CALL = "⚙ "  # the beginning of a tool call's line
CALLS = re.compile("<tool_call>.*?</tool_call>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Message:
    """What one author wrote; `span` is None for a turn of the model that has not ended."""

    text: str
    span: Span | None

    @property
    def is_reply(self) -> bool:
        """Whether the environment wrote it."""
        return self.span is not None and self.span.kind == "environment"

    @property
    def has_calls(self) -> bool:
        """Whether it has what tools replied, a line for each."""
        return self.is_reply and self.text.startswith(CALL)


def messages(text: str, spans: Iterable[Span]) -> Iterator[Message]:
    """Split a rollout's text by its spans; what is left belongs to a turn that still grows."""
    start = 0
    for span in spans:
        part = text[start : start + span.chars]
        yield Message(part.strip("\n") if span.kind == "environment" else part, span)
        start += span.chars
    if start < len(text):
        yield Message(text[start:], None)


Piece = tuple[str, bool]  # safe text, and whether the environment wrote it


def flow(text: str, spans: Sequence[Span], width: int, limit: int) -> list[list[Piece]]:
    """The end of a dialogue in at most `limit` lines: turns, and replies in ‹›, as one text.

    A tool call is one line, if there are several: the reply is shorter than the model's call.
    """
    joined = authors = ""
    for piece, is_reply in _pieces(text, spans, width, calls=limit > 1):
        joined += piece
        authors += "e" * len(piece) if is_reply else "m" * len(piece)
    joined = joined.rstrip()
    wrapped = [clip_start(joined, width)]
    if limit > 1:
        wrapped = wrap(joined, width, limit, from_end=True)
    lines: list[list[Piece]] = []
    end = len(joined)
    for line in reversed(wrapped):
        text = line.removeprefix(ELLIPSIS)
        end = joined.rfind(text, 0, end)
        parts = groupby(zip(text, authors[end:], strict=False), key=itemgetter(1))
        cut = [(ELLIPSIS, True)] if text != line else []
        lines.append(cut + [("".join(char for char, _ in part), by == "e") for by, part in parts])
    return lines[::-1]


def _pieces(text: str, spans: Sequence[Span], width: int, *, calls: bool) -> Iterator[Piece]:
    """The words of both authors with a space after them, and tool calls between line ends."""
    parts = list(messages(text, spans))
    inline = False
    for message, reply in zip(parts, [*parts[1:], None], strict=True):
        if message.has_calls and calls:
            yield "\n" * inline, True
            yield from ((f"{clip(call, width)}\n", True) for call in message.text.splitlines())
            inline = False
            continue
        text = message.text
        if reply is not None and reply.has_calls:
            text = CALLS.sub("", text)
        text = " ".join(safe(text, " ").split())
        if text:
            inline = True
            is_short = message.is_reply and not message.has_calls
            yield f"‹{text}› " if is_short else f"{text} ", message.is_reply
