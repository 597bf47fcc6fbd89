"""A dialogue's text by author: the model's turns, and the environment's replies to them."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from grpo_engine.events import Span
from grpo_tui.app.inspector.layout import lay_out
from grpo_tui.app.text.safe_text import cell_len, clip, clip_start, safe

CALL = "⚙ "  # how the line of a tool call begins
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
    lines: list[list[Piece]] = []
    pieces: list[Piece] = []
    ending = _ending(messages(text, spans), 8 * width * limit + 256)
    for message, reply in zip(ending, [*ending[1:], None], strict=True):
        if message.has_calls and limit > 1:
            calls = message.text.splitlines()[-limit:]
            lines += [*_filled(pieces, width), *([(clip(call, width), True)] for call in calls)]
            pieces = []
            continue
        visible = message.text
        if reply is not None and reply.has_calls:
            visible = CALLS.sub("", visible)
        elif message.is_reply and not message.has_calls and visible:
            visible = f"‹{visible}›"
        pieces += [(f"{word} ", message.is_reply) for word in safe(visible, " ").split()]
    if pieces:
        pieces[-1] = (pieces[-1][0].rstrip(), pieces[-1][1])
    if limit == 1:
        return [_line_end(pieces, width)]
    lines += _filled(pieces, width)
    if len(lines) > limit:
        lines = lines[-limit:]
        lines[0] = _line_end([("… ", True), *lines[0]], width)
    return lines


def _ending(parts: Iterable[Message], characters: int) -> list[Message]:
    """The last messages that have this many characters together."""
    result: list[Message] = []
    for message in reversed(list(parts)):
        if characters <= 0:
            break
        result.append(Message(message.text[-characters:], message.span))
        characters -= len(message.text)
    return result[::-1]


def _filled(pieces: Sequence[Piece], width: int) -> list[list[Piece]]:
    """Words in lines of `width` cells."""
    lines: list[list[Piece]] = []
    for line in lay_out([text for text, _ in pieces], width) if pieces else ():
        # the space behind a word of just this width is on the next line
        visible = line[1:] if line and line[0].text.isspace() else line
        if visible:
            lines.append([(piece.text, pieces[piece.token][1]) for piece in visible])
    return lines


def _line_end(line: Sequence[Piece], width: int) -> list[Piece]:
    """The end of a line, cut to `width` cells."""
    if sum(cell_len(text) for text, _ in line) <= width:
        return list(line)
    result: list[Piece] = []
    left = width - 1
    for text, is_reply in reversed(line):
        if cell_len(text) > left:
            if not result:
                return [(clip_start(text, width), is_reply)]
            break
        result.append((text, is_reply))
        left -= cell_len(text)
    return [("…", True), *result[::-1]]
