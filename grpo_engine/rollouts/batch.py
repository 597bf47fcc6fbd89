"""What decoding asks of a batch: rows that are decoded together, with their caches.

Axes: n rows, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx

PREFILL_TOKENS = 2048  # tokens of one prefill forward


@dataclass(frozen=True, slots=True, eq=False)
class Cached:
    """The caches of one row, in the batch's own format."""

    caches: Any


@dataclass(frozen=True, slots=True, eq=False)
class Prefilled(Cached):
    """The caches of one row, and the logits after its last token [V]."""

    logits: mx.array


class Batch(Protocol):
    """Rows decoded together.

    If it `runs_ahead`, a step is queued without waiting for its input, and rows that have ended
    leave seldom, since that copies the caches.
    """

    runs_ahead: bool

    def prefill(self, prompts: Sequence[tuple[int, ...]]) -> list[Prefilled]:
        """Run the prompts."""

    def add(self, rows: Sequence[Prefilled]) -> None:
        """Append rows; a prompt may occur many times."""

    def step(self, tokens: mx.array) -> mx.array:
        """Append one token per row, [n], and return the logits after it, [n, V]."""

    def keep(self, indices: Sequence[int]) -> None:
        """Drop all rows but these; the new row i is the old row indices[i]."""

    def take(self, indices: Sequence[int]) -> list[Cached]:
        """Copy the caches of rows that leave the batch, to continue them later."""

    def extend(self, rows: Sequence[Cached], pieces: Sequence[tuple[int, ...]]) -> list[Prefilled]:
        """Run a piece of tokens on top of each row's caches, which stay as they are."""


def portions(pieces: Sequence[tuple[int, ...]], *, pads: bool = True) -> Iterator[slice]:
    """Divide neighbouring pieces into forwards of at most `PREFILL_TOKENS` tokens.

    Without padding only pieces of equal length run together.
    """
    start, longest = 0, 0
    for end, piece in enumerate(pieces):
        longest = max(longest, len(piece))
        is_full = longest * (end + 1 - start) > PREFILL_TOKENS
        if end > start and (is_full or (not pads and len(piece) != len(pieces[start]))):
            yield slice(start, end)
            start, longest = end, len(piece)
    if pieces:
        yield slice(start, len(pieces))


def padded(pieces: Sequence[tuple[int, ...]], pad_id: int) -> mx.array:
    """The pieces as one array, padded on the right, [n, L]."""
    width = max(map(len, pieces))
    rows = [piece + (pad_id,) * (width - len(piece)) for piece in pieces]
    return mx.array(rows, dtype=mx.int32)
