"""Rollouts as padded arrays: micro-batches of whole groups or slices of one group.

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
    ids: mx.array  # [B, T] int32, padded
    mask: mx.array  # [B, T] float32: 1 on sampled tokens, 0 on padding and forced tokens
    flat: mx.array  # [N] indices of the sampled tokens in ids.reshape(-1)
    _indices: mx.array  # [B, T] index of each token among the N; N on padding
    _segments: "TokenBatch | None" = None

    @property
    def segments(self) -> "TokenBatch":
        """The batch with a row for each segment, whose sampled tokens are the same N in order."""
        return self._segments or self

    @property
    def width(self) -> int:
        """T, the padded completion length."""
        return int(self.ids.shape[1])

    @property
    def targets(self) -> mx.array:
        """The sampled token ids in the order of `flat`, [N]."""
        return self.ids.reshape(-1)[self.flat]

    def spread(self, values: mx.array) -> mx.array:
        """Scatter values of the N sampled tokens to [B, T]; 0 elsewhere."""
        return mx.concatenate([values, mx.zeros(1, dtype=values.dtype)])[self._indices]

    def prefixes(self, pad_id: int) -> tuple[mx.array, mx.array]:
        """Prompts without their last token, right-padded [P, L], and that token per row [B, 1]."""
        ids = _pad([prompt[:-1] for prompt in self.prompts], pad_id)
        return ids, mx.array([[self.prompts[p][-1]] for p in self.prompt_of], dtype=mx.int32)

    def joined(self, pad_id: int) -> tuple[mx.array, mx.array]:
        """Prompt and completion without its last token, [B, L]; flat indices of the N states."""
        sequences = [
            self.prompts[p] + ids[:-1]
            for p, ids in zip(self.prompt_of, self.completions, strict=True)
        ]
        ids = _pad(sequences, pad_id)
        starts = mx.array([len(self.prompts[p]) - 1 for p in self.prompt_of], dtype=mx.int32)
        row, position = self.flat // self.width, self.flat % self.width
        return ids, row * ids.shape[1] + starts[row] + position


def make_batch(rollouts: Sequence[TokenRow], rows: Sequence[int], *, pad_id: int = 0) -> TokenBatch:
    """Pad the chosen rows to the longest completion."""
    numbers: dict[tuple[int, ...], int] = {}
    prompt_of = [numbers.setdefault(rollouts[row].prompt_ids, len(numbers)) for row in rows]
    completions = tuple(rollouts[row].ids for row in rows)
    width = max([1, *map(len, completions)])
    mask = np.zeros((len(rows), width), dtype=np.float32)
    for line, row in zip(mask, rows, strict=True):
        line[: len(rollouts[row].ids)] = 1
        line[list(rollouts[row].forced)] = 0
    flat = np.flatnonzero(mask)
    indices = np.full(mask.size, len(flat), dtype=np.int32)
    indices[flat] = np.arange(len(flat))
    segments = None
    if any(rollouts[row].contexts for row in rows):
        parts = [part for row in rows for part in rollouts[row].segments()]
        segments = make_batch(parts, range(len(parts)), pad_id=pad_id)
    return TokenBatch(
        rows=tuple(rows),
        prompts=tuple(numbers),
        prompt_of=tuple(prompt_of),
        completions=completions,
        ids=_pad(completions, pad_id, width),
        mask=mx.array(mask),
        flat=mx.array(flat.astype(np.int32)),
        _indices=mx.array(indices.reshape(mask.shape)),
        _segments=segments,
    )


def _pad(rows: Sequence[tuple[int, ...]], pad_id: int, width: int = 0) -> mx.array:
    width = width or max(map(len, rows), default=0)
    padded = np.full((len(rows), width), pad_id, dtype=np.int32)
    for line, row in zip(padded, rows, strict=True):
        line[: len(row)] = row
    return mx.array(padded)


def micro_batches(
    rollouts: Sequence[TokenRow],
    *,
    max_rows: int,
    pad_id: int = 0,
    only: Sequence[int] | None = None,
) -> list[TokenBatch]:
    """Split the rollouts (or those in `only`) into batches of at most `max_rows` rows.

    Groups are sorted by their longest completion and rows within a group by length, longest
    first, to keep padding short and run the largest batch first.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for row in range(len(rollouts)) if only is None else only:
        groups.setdefault(rollouts[row].prompt_ids, []).append(row)

    def length(row: int) -> int:
        return len(rollouts[row].ids)

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
    return [make_batch(rollouts, rows, pad_id=pad_id) for rows in batches]
