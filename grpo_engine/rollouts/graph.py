"""Rows decoded by MLX's graph on mlx-lm's caches: as one batch, or one after another.

Axes: n rows, L tokens of a piece, D hidden width, V vocabulary.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from grpo_engine.policy.policy import Policy
from grpo_engine.rollouts.batch import PREFILL_TOKENS, Cached, Prefilled, padded, portions


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    """One row of caches that hold several."""

    caches: list[Any]
    index: int

    def extract(self) -> list[Any]:
        """The row's own caches."""
        return [cache.extract(self.index) for cache in self.caches]


class GraphBatch:
    """All rows as one batch over mlx-lm's batch caches."""

    runs_ahead = True
    pads = True  # prompts of different length run together

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.caches: list[Any] = []

    def prefill(self, prompts: Sequence[tuple[int, ...]]) -> list[Prefilled]:
        return self.extend([Cached(make_prompt_cache(self.policy.model)) for _ in prompts], prompts)

    def extend(self, rows: Sequence[Cached], pieces: Sequence[tuple[int, ...]]) -> list[Prefilled]:
        extended: list[Prefilled] = []
        for portion in portions(pieces, pads=self.pads):
            extended += self._run([row.caches for row in rows[portion]], pieces[portion])
        return extended

    def _run(self, rows: Sequence[list[Any]], pieces: Sequence[tuple[int, ...]]) -> list[Prefilled]:
        caches = [type(layer[0]).merge(list(layer)) for layer in zip(*rows, strict=True)]
        lengths = [len(piece) for piece in pieces]
        ids = padded(pieces, self.policy.pad_id)
        padding = [ids.shape[1] - length for length in lengths]
        if any(padding):
            for cache in caches:
                cache.prepare(lengths=lengths, right_padding=padding)
        logits = self._last_logits(ids, lengths, caches)
        if any(padding):
            for cache in caches:
                cache.finalize()
        mx.eval(logits, [cache.state for cache in caches])
        return [Prefilled(_Row(caches, index), logits[index]) for index in range(len(pieces))]

    def _last_logits(self, ids: mx.array, lengths: list[int], caches: list[Any]) -> mx.array:
        """Run the tokens; the logits after each row's last one, [n, V]."""
        parts, outputs = self.policy.parts, []
        for start in range(0, ids.shape[1], PREFILL_TOKENS):
            part = ids[:, start : start + PREFILL_TOKENS]
            output = parts.hidden(part, caches) if parts else self.policy.model(part, cache=caches)
            ends = [index for index, length in enumerate(lengths)
                    if start < length <= start + part.shape[1]]  # fmt: skip
            outputs += [(index, output[index, lengths[index] - 1 - start]) for index in ends]
            mx.eval([output for _, output in outputs], [cache.state for cache in caches])
        last = mx.stack([output for _, output in sorted(outputs, key=lambda pair: pair[0])])
        return parts.logits(last) if parts else last

    def add(self, rows: Sequence[Prefilled]) -> None:
        for _, together in groupby((row.caches for row in rows), key=lambda row: id(row.caches)):
            same = list(together)
            new = copy.deepcopy(same[0].caches)
            for cache in new:
                cache.filter(mx.array([row.index for row in same]))
            if not self.caches:
                self.caches = new
                continue
            for cache, other in zip(self.caches, new, strict=True):
                cache.extend(other)

    def step(self, tokens: mx.array) -> mx.array:
        logits: mx.array = self.policy.model(tokens[:, None], cache=self.caches)[:, -1]
        return logits

    def keep(self, indices: Sequence[int]) -> None:
        if not indices:
            self.caches = []
        for cache in self.caches:
            cache.filter(mx.array(list(indices)))

    def take(self, indices: Sequence[int]) -> list[Cached]:
        return [Cached([cache.extract(index) for cache in self.caches]) for index in indices]


class UnpaddedBatch(GraphBatch):
    """The same for models that run padding like any other token, such as some with states."""

    pads = False


class SeparateBatch:
    """Each row with its own caches, run one after another."""

    runs_ahead = True

    def __init__(self, policy: Policy) -> None:
        self.model = policy.model
        self.rows: list[list[Any]] = []

    def prefill(self, prompts: Sequence[tuple[int, ...]]) -> list[Prefilled]:
        return self.extend([Cached(make_prompt_cache(self.model)) for _ in prompts], prompts)

    def extend(self, rows: Sequence[Cached], pieces: Sequence[tuple[int, ...]]) -> list[Prefilled]:
        extended = []
        for row, piece in zip(rows, pieces, strict=True):
            caches = copy.deepcopy(row.caches)
            logits = self.model(mx.array([piece]), cache=caches)[0, -1]
            mx.eval(logits, [cache.state for cache in caches])
            extended.append(Prefilled(caches, logits))
        return extended

    def add(self, rows: Sequence[Prefilled]) -> None:
        """Give each row a copy of its prompt's caches."""
        self.rows += [copy.deepcopy(row.caches) for row in rows]

    def step(self, tokens: mx.array) -> mx.array:
        """Run each row's token."""
        return mx.concatenate([
            self.model(tokens[index : index + 1, None], cache=caches)[:, -1]
            for index, caches in enumerate(self.rows)
        ])  # fmt: skip

    def keep(self, indices: Sequence[int]) -> None:
        self.rows = [self.rows[index] for index in indices]

    def take(self, indices: Sequence[int]) -> list[Cached]:
        return [Cached(copy.deepcopy(self.rows[index])) for index in indices]
