"""An answer's tokens in lines of cells, so that each cell knows its token."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from rich.cells import chop_cells

from grpo_tui.app.text.safe_text import NEWLINE_SIGN, cell_len, safe

EMPTY_SIGN = "▪"  # as at the end of an answer on Watch


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of one line that belongs to one token; `cells` wide."""

    token: int
    text: str
    cells: int


Line = tuple[Piece, ...]


def lay_out(tokens: Sequence[str], width: int, first: int = 0) -> tuple[Line, ...]:
    """Fill lines of `width` cells; a newline in a token shows as a sign and ends the line.

    `first` is the index of the first token.
    """
    lines: list[list[Piece]] = [[]]
    left = width
    for index, text in enumerate(tokens, first):
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
    rows = text.replace("\r\n", "\n").split("\n") if text else [EMPTY_SIGN]
    parts: list[tuple[str, int, bool]] = []
    for row in rows[:-1]:
        *before, (part, cells) = _pieces(safe(row) + NEWLINE_SIGN, width)
        parts += [(*piece, False) for piece in before] + [(part, cells, True)]
    if rows[-1]:
        parts += [(*piece, False) for piece in _pieces(safe(rows[-1]), width)]
    return tuple(parts)


def _pieces(text: str, width: int) -> list[tuple[str, int]]:
    parts = [text] if cell_len(text) <= width else chop_cells(text, width)
    return [(part, cell_len(part)) for part in parts if part]
