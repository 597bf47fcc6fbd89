"""Lay out an answer's tokens in lines of cells, so that each cell knows its token."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from grpo_tui.app.text.safe_text import NEWLINE_SIGN, cell_len, safe

EMPTY_SIGN = "▪"  # as at the end of an answer on Watch


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of one line that belongs to one token; `cells` wide."""

    token: int
    text: str
    cells: int


Line = tuple[Piece, ...]


def token_texts(text: str, ends: Sequence[int]) -> tuple[str, ...]:
    """Split a text into tokens; `ends[t]` is the number of characters up to and with token t."""
    return tuple(text[start:end] for start, end in pairwise((0, *ends)))


def lay_out(tokens: Sequence[str], width: int) -> tuple[Line, ...]:
    """Fill lines of `width` cells; a newline in a token shows as a sign and ends the line.

    The sign of an empty token, such as the one that ends an answer, is not alone on a line for
    want of room.
    """
    lines: list[list[Piece]] = [[]]
    room = width
    for index, raw in enumerate(tokens):
        for text, breaks in _parts(raw):
            for bit, cells in _bits(text, width):
                if cells > room:
                    line = lines[-1]
                    moves = not raw and len(line) > 1 and line[-1].cells + cells <= width
                    lines.append([line.pop()] if moves else [])
                    room = width - sum(piece.cells for piece in lines[-1])
                lines[-1].append(Piece(index, bit, cells))
                room -= cells
            if breaks:
                lines.append([])
                room = width
    if not lines[-1] and len(lines) > 1:
        lines.pop()
    return tuple(tuple(line) for line in lines)


@lru_cache(maxsize=8192)
def _parts(raw: str) -> tuple[tuple[str, bool], ...]:
    if raw == "":
        return ((EMPTY_SIGN, False),)
    if "\n" not in raw:
        return ((safe(raw), False),)
    pieces = raw.replace("\r\n", "\n").split("\n")
    last = len(pieces) - 1
    parts = [(safe(p) + (NEWLINE_SIGN if i < last else ""), i < last) for i, p in enumerate(pieces)]
    return tuple(part for part in parts if part[0])


@lru_cache(maxsize=8192)
def _bits(text: str, width: int) -> tuple[tuple[str, int], ...]:
    cells = cell_len(text)
    if cells <= width:
        return ((text, cells),)
    bits, current, used = [], "", 0
    for char in text:
        size = cell_len(char)
        if used + size > width and current:
            bits.append((current, used))
            current, used = "", 0
        current += char
        used += size
    return (*bits, (current, used))
