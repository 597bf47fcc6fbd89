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
class Said:
    """What one author said; `span` is None for a turn of the model that has not ended."""

    text: str
    span: Span | None

    @property
    def is_reply(self) -> bool:
        """Whether the environment said it."""
        return self.span is not None and self.span.kind == "environment"

    @property
    def has_calls(self) -> bool:
        """Whether it tells what tools replied, a line for each."""
        return self.is_reply and self.text.startswith(CALL)


def parts(text: str, spans: Iterable[Span]) -> Iterator[Said]:
    """Split a rollout's text by its spans; what is left belongs to a turn that still grows."""
    at = 0
    for span in spans:
        part = text[at : at + span.chars]
        yield Said(part.strip("\n") if span.kind == "environment" else part, span)
        at += span.chars
    if at < len(text):
        yield Said(text[at:], None)


Piece = tuple[str, bool]  # safe text, and whether the environment said it


def flow(text: str, spans: Sequence[Span], width: int, most: int) -> list[list[Piece]]:
    """The end of a dialogue in at most `most` lines: turns, and replies in ‹›, as one text.

    A tool call is one line, if there are several: the reply tells it shorter than the model did.
    """
    lines: list[list[Piece]] = []
    words: list[Piece] = []
    said = _end(parts(text, spans), 8 * width * most + 256)
    for one, reply in zip(said, [*said[1:], None], strict=True):
        if one.has_calls and most > 1:
            calls = one.text.splitlines()[-most:]
            lines += [*_filled(words, width), *([(clip(call, width), True)] for call in calls)]
            words = []
            continue
        shown = one.text
        if reply is not None and reply.has_calls:
            shown = CALLS.sub("", shown)
        elif one.is_reply and not one.has_calls and shown:
            shown = f"‹{shown}›"
        words += [(f"{word} ", one.is_reply) for word in safe(shown, " ").split()]
    if words:
        words[-1] = (words[-1][0].rstrip(), words[-1][1])
    if most == 1:
        return [_last_cells(words, width)]
    lines += _filled(words, width)
    if len(lines) > most:
        lines = lines[-most:]
        lines[0] = _last_cells([("… ", True), *lines[0]], width)
    return lines


def _end(said: Iterable[Said], characters: int) -> list[Said]:
    """The last parts that have this many characters together."""
    kept: list[Said] = []
    for one in reversed(list(said)):
        if characters <= 0:
            break
        kept.append(Said(one.text[-characters:], one.span))
        characters -= len(one.text)
    return kept[::-1]


def _filled(words: Sequence[Piece], width: int) -> list[list[Piece]]:
    """Words in lines of `width` cells."""
    if not words:
        return []
    found: list[list[Piece]] = []
    for line in lay_out([word for word, _ in words], width):
        # the space behind a word of just this width is on the next line
        kept = line[1:] if line and line[0].text.isspace() else line
        if kept:
            found.append([(piece.text, words[piece.token][1]) for piece in kept])
    return found


def _last_cells(line: Sequence[Piece], width: int) -> list[Piece]:
    """The end of a line, cut to `width` cells."""
    if sum(cell_len(text) for text, _ in line) <= width:
        return list(line)
    kept: list[Piece] = []
    room = width - 1
    for text, is_reply in reversed(line):
        if cell_len(text) > room:
            if not kept:
                return [(clip_start(text, width), is_reply)]
            break
        kept.append((text, is_reply))
        room -= cell_len(text)
    return [("…", True), *kept[::-1]]
