"""Completions as padded arrays: micro-batches of whole groups or slices of one group.

Axes: B rows, T completion tokens. Rows remember their index in the list that they came from.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np


@dataclass(frozen=True, slots=True)
class TokenRow:
    """The tokens of a prompt and of its completion, as sampled, end tokens included."""

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    forced: tuple[int, ...] = ()  # positions of tokens that were not sampled
    contexts: tuple[tuple[int, int], ...] = ()  # position and length of each prompt within the ids

    def segments(self) -> list["TokenRow"]:
        """The ids after each prompt, which depend on no token before it."""
        before, ids = len(self.prompt_ids), (*self.prompt_ids, *self.ids)
        prompts = [(0, before), *((before + at, before + at + n) for at, n in self.contexts)]
        ends = [start for start, _ in prompts[1:]] + [len(ids)]
        forced = [before + position for position in self.forced]
        return [
            TokenRow(
                ids[start:begin],
                ids[begin:end],
                tuple(p - begin for p in forced if begin <= p < end),
            )
            for (start, begin), end in zip(prompts, ends, strict=True)
        ]


@dataclass(frozen=True, slots=True, eq=False)
class TokenBatch:
    """Completions of one or more prompts, right-padded; each distinct prompt is stored once."""

    rows: tuple[int, ...]  # [B] indices into the list that the batch was made from
    prompts: tuple[tuple[int, ...], ...]  # [P] distinct prompts
    prompt_of: tuple[int, ...]  # [B] index into `prompts`
    completions: tuple[tuple[int, ...], ...]  # [B] ids as sampled
    ids_BT: mx.array  # int32, padded
    mask_BT: mx.array  # float32: 1 on sampled tokens, 0 on padding and forced tokens
    flat_N: mx.array  # indices of the sampled tokens in ids_BT.reshape(-1)
    _indices_BT: mx.array  # index of each token among the N; N on padding
    _segments: "TokenBatch | None" = None

    @property
    def segments(self) -> "TokenBatch":
        """The batch with a row for each segment, whose sampled tokens are the same N in order."""
        return self._segments or self

    @property
    def width(self) -> int:
        """T, the padded completion length."""
        return int(self.ids_BT.shape[1])

    @property
    def targets(self) -> mx.array:
        """The sampled token ids in the order of `flat_N`, [N]."""
        return self.ids_BT.reshape(-1)[self.flat_N]

    def spread(self, values_N: mx.array) -> mx.array:
        """Scatter values of the sampled tokens to [B, T]; 0 elsewhere."""
        return mx.concatenate([values_N, mx.zeros(1, dtype=values_N.dtype)])[self._indices_BT]

    def prefixes(self, pad_id: int) -> tuple[mx.array, mx.array]:
        """Prompts without their last token, right-padded [P, L], and that token per row [B, 1]."""
        ids_PL = _pad([prompt[:-1] for prompt in self.prompts], pad_id)
        return ids_PL, mx.array([[self.prompts[p][-1]] for p in self.prompt_of], dtype=mx.int32)

    def joined(self, pad_id: int) -> tuple[mx.array, mx.array]:
        """Prompt and completion without its last token, [B, L]; flat indices of the N states."""
        sequences = [
            self.prompts[p] + ids[:-1]
            for p, ids in zip(self.prompt_of, self.completions, strict=True)
        ]
        ids_BL = _pad(sequences, pad_id)
        starts_B = mx.array([len(self.prompts[p]) - 1 for p in self.prompt_of], dtype=mx.int32)
        row_N, position_N = self.flat_N // self.width, self.flat_N % self.width
        return ids_BL, row_N * ids_BL.shape[1] + starts_B[row_N] + position_N


def make_batch(
    token_rows: Sequence[TokenRow], rows: Sequence[int], *, pad_id: int = 0
) -> TokenBatch:
    """Pad the chosen rows to the longest completion."""
    numbers: dict[tuple[int, ...], int] = {}
    prompt_of = [numbers.setdefault(token_rows[row].prompt_ids, len(numbers)) for row in rows]
    completions = tuple(token_rows[row].ids for row in rows)
    width = max([1, *map(len, completions)])
    mask_BT = np.zeros((len(rows), width), dtype=np.float32)
    for line, row in zip(mask_BT, rows, strict=True):
        line[: len(token_rows[row].ids)] = 1
        line[list(token_rows[row].forced)] = 0
    flat_N = np.flatnonzero(mask_BT).astype(np.int32)
    indices = np.full(mask_BT.size, len(flat_N), dtype=np.int32)
    indices[flat_N] = np.arange(len(flat_N))
    segments = None
    if any(token_rows[row].contexts for row in rows):
        parts = [part for row in rows for part in token_rows[row].segments()]
        segments = make_batch(parts, range(len(parts)), pad_id=pad_id)
    return TokenBatch(
        rows=tuple(rows),
        prompts=tuple(numbers),
        prompt_of=tuple(prompt_of),
        completions=completions,
        ids_BT=_pad(completions, pad_id, width),
        mask_BT=mx.array(mask_BT),
        flat_N=mx.array(flat_N),
        _indices_BT=mx.array(indices.reshape(mask_BT.shape)),
        _segments=segments,
    )


def _pad(rows: Sequence[tuple[int, ...]], pad_id: int, width: int = 0) -> mx.array:
    width = width or max(map(len, rows), default=0)
    padded = np.full((len(rows), width), pad_id, dtype=np.int32)
    for line, row in zip(padded, rows, strict=True):
        line[: len(row)] = row
    return mx.array(padded)


def micro_batches(
    token_rows: Sequence[TokenRow],
    *,
    max_rows: int,
    pad_id: int = 0,
    only: Sequence[int] | None = None,
) -> list[TokenBatch]:
    """Split the rows (or those in `only`) into batches of at most `max_rows` rows.

    Groups are sorted by their longest completion and rows within a group by length, longest
    first, to keep padding short and run the largest batch first.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for row in range(len(token_rows)) if only is None else only:
        groups.setdefault(token_rows[row].prompt_ids, []).append(row)

    def length(row: int) -> int:
        return len(token_rows[row].ids)

    def longest(rows: list[int]) -> int:
        return length(rows[0])

    ordered = [sorted(group, key=length, reverse=True) for group in groups.values()]
    slices: list[list[int]] = []
    merged: list[list[int]] = []
    for group in sorted(ordered, key=longest, reverse=True):
        if len(group) > max_rows:
            slices += [group[i : i + max_rows] for i in range(0, len(group), max_rows)]
        elif merged and len(merged[-1]) + len(group) <= max_rows:
            merged[-1] += group
        else:
            merged.append(group)
    batches = sorted(slices + merged, key=longest, reverse=True)
    return [make_batch(token_rows, rows, pad_id=pad_id) for rows in batches]
