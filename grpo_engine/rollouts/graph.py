"""Rows decoded by MLX's graph on mlx-lm's caches: as one batch, or one after another.

Axes: B rows, L tokens of a piece, D hidden width, V vocabulary.
"""

import copy
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import mlx.core as mx

from grpo_engine.policy.policy import Policy
from grpo_engine.policy.quantized import empty_caches

PREFILL_TOKENS = 2048  # tokens of one prefill forward

Caches = list[Any]
"""The caches of one row or of several, by layer."""


class Prefilled(NamedTuple):
    """A row of caches that may hold several, and the logits after its last token, [V]."""

    caches: Caches
    row: int
    logits: mx.array


class GraphBatch:
    """Rows decoded together over mlx-lm's batch caches.

    If a batch `is_async`, a step is queued without waiting for its input, and rows that have ended
    leave seldom, since that copies the caches.
    """

    is_async = True
    pads = True  # Prompts of different length run together.

    def __init__(self, policy: Policy, bits: int = 0) -> None:
        self.policy, self.bits = policy, bits  # bits of a cached number; 0: the model's format
        self.caches: Caches = []

    def empty(self) -> Caches:
        """The caches of a row without tokens."""
        return empty_caches(self.policy.model, self.bits)

    def prefill(self, prompts: Sequence[tuple[int, ...]]) -> list[Prefilled]:
        """Run the prompts on empty caches."""
        return self.extend([self.empty() for _ in prompts], prompts)

    def extend(self, rows: Sequence[Caches], pieces: Sequence[tuple[int, ...]]) -> list[Prefilled]:
        """Run a piece of tokens on top of each row's caches, which stay as they are."""
        extended: list[Prefilled] = []
        for portion in _portions(pieces, pads=self.pads):
            extended += self._run(rows[portion], pieces[portion])
        return extended

    def _run(self, rows: Sequence[Caches], pieces: Sequence[tuple[int, ...]]) -> list[Prefilled]:
        caches = [type(layer[0]).merge(list(layer)) for layer in zip(*rows, strict=True)]
        lengths = [len(piece) for piece in pieces]
        width, pad = max(lengths), (self.policy.pad_id,)
        ids_BL = mx.array([piece + pad * (width - len(piece)) for piece in pieces], dtype=mx.int32)
        padding = [width - length for length in lengths]
        if any(padding):
            for cache in caches:
                cache.prepare(lengths=lengths, right_padding=padding)
        logits_BV = self._last_logits(ids_BL, lengths, caches)
        if any(padding):
            for cache in caches:
                cache.finalize()
        mx.eval(logits_BV, [cache.state for cache in caches])
        return [Prefilled(caches, index, logits_BV[index]) for index in range(len(pieces))]

    def _last_logits(self, ids_BL: mx.array, lengths: list[int], caches: Caches) -> mx.array:
        """Run the tokens; the logits after each row's last one, [B, V]."""
        parts, last = self.policy.parts, {}
        for start in range(0, ids_BL.shape[1], PREFILL_TOKENS):
            part = ids_BL[:, start : start + PREFILL_TOKENS]
            output = parts.hidden(part, caches) if parts else self.policy.model(part, cache=caches)
            for index, length in enumerate(lengths):
                if start < length <= start + part.shape[1]:
                    last[index] = output[index, length - 1 - start]
            mx.eval(last, [cache.state for cache in caches])
        outputs = mx.stack([last[index] for index in range(len(lengths))])
        return parts.logits(outputs) if parts else outputs

    def add(self, rows: Sequence[Prefilled]) -> None:
        """Append rows; a prompt may occur many times."""
        for _, group in groupby(rows, key=lambda row: id(row.caches)):
            first, *others = group
            caches = copy.deepcopy(first.caches)
            for cache in caches:
                cache.filter(mx.array([first.row, *(item.row for item in others)]))
            if not self.caches:
                self.caches = caches
                continue
            for cache, new in zip(self.caches, caches, strict=True):
                cache.extend(new)

    def step(self, tokens: mx.array) -> mx.array:
        """Append one token per row, [B], and return the logits after it, [B, V]."""
        logits: mx.array = self.policy.model(tokens[:, None], cache=self.caches)[:, -1]
        return logits

    def select(self, indices: Sequence[int]) -> None:
        """Drop all rows but these; the new row i is the old row indices[i]."""
        if not indices:
            self.caches = []
        for cache in self.caches:
            cache.filter(mx.array(list(indices)))

    def copies(self, indices: Sequence[int]) -> list[Caches]:
        """The caches of rows that leave the batch, to continue them later."""
        return [[cache.extract(index) for cache in self.caches] for index in indices]


class UnpaddedBatch(GraphBatch):
    """The same for models that run padding like any other token, such as some with states."""

    pads = False


class SeparateBatch(GraphBatch):
    """Each row with its own caches, run one after another."""

    def extend(self, rows: Sequence[Caches], pieces: Sequence[tuple[int, ...]]) -> list[Prefilled]:
        extended = []
        for row, piece in zip(rows, pieces, strict=True):
            caches = copy.deepcopy(row)
            logits = self.policy.model(mx.array([piece]), cache=caches)[0, -1]
            mx.eval(logits, [cache.state for cache in caches])
            extended.append(Prefilled(caches, 0, logits))
        return extended

    def add(self, rows: Sequence[Prefilled]) -> None:
        self.caches += [copy.deepcopy(row.caches) for row in rows]

    def step(self, tokens: mx.array) -> mx.array:
        return mx.concatenate(
            [
                self.policy.model(tokens[index : index + 1, None], cache=caches)[:, -1]
                for index, caches in enumerate(self.caches)
            ]
        )

    def select(self, indices: Sequence[int]) -> None:
        self.caches = [self.caches[index] for index in indices]

    def copies(self, indices: Sequence[int]) -> list[Caches]:
        return [copy.deepcopy(self.caches[index]) for index in indices]


def _portions(pieces: Sequence[tuple[int, ...]], *, pads: bool) -> Iterator[slice]:
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
