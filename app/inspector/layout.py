"""An answer's tokens in lines of cells, so that each cell knows its token."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from rich.cells import chop_cells

from grpo_tui.app.text.safe_text import NEWLINE_SIGN, UNDIVIDED, cell_len, safe

EMPTY_SIGN = "▪"  # Watch ends a text with the same sign.


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of one line that belongs to one token; `cells` wide."""

    token: int
    text: str
    cells: int


Line = tuple[Piece, ...]


def lay_out(tokens: Sequence[str], width: int, first: int = 0) -> tuple[Line, ...]:
    """Fill lines of `width` cells; a newline in a token shows as a sign, which ends the line.

    `first` is the index of the first token. A tag or a number of several tokens is not divided if
    it fits.
    """
    lines: list[list[Piece]] = [[]]
    left, start = width, 0
    whole = "".join(tokens)
    tags = deque(UNDIVIDED.finditer(whole))
    # an empty token at the end stands behind the last word, and not alone in a line
    end = len(whole) if tokens and not tokens[-1] else None
    for index, text in enumerate(tokens, first):
        needed = cell_len(safe(text)) if text and start + len(text) == end else 0
        while tags and tags[0].start() < start + len(text):
            needed = tags.popleft().end() - start
        needed += bool(needed) and start + max(needed, len(text)) == end
        if lines[-1] and left < needed <= width and "\n" not in text:
            lines.append([])
            left = width
        start += len(text)
        for part, cells, breaks in _parts(text, width):
            if cells > left:
                lines.append([])
                left = width
            lines[-1].append(Piece(index, part, cells))
            left -= cells
            if breaks:
                lines.append([])
                left = width
    if not lines[-1] and len(lines) > 1:
        lines.pop()
    return tuple(map(tuple, lines))


@lru_cache(maxsize=8192)
def _parts(text: str, width: int) -> tuple[tuple[str, int, bool], ...]:
    """The parts of a token that fit into a line, their cells, and whether the line ends."""
    rows = (text or EMPTY_SIGN).replace("\r\n", "\n").split("\n")
    rows = [safe(row) + NEWLINE_SIGN for row in rows[:-1]] + [safe(rows[-1])]
    return tuple(
        (part, cell_len(part), part.endswith(NEWLINE_SIGN))
        for row in rows
        for part in chop_cells(row, width)
        if part
    )
