"""Rows that are decoded together by compiled code, with their keys and values.

Each layer has one array of keys and one of values: first the prompts, once for all rows that share
them, then for each row the positions of its new tokens. Axes: B rows, H key heads, L tokens, W head
width, T positions of all prompts and rows.
"""

from collections.abc import Sequence
from typing import Final

import mlx.core as mx
import numpy as np

from grpo_engine.cpu import passes
from grpo_engine.cpu.weights import HeadWeights, TrunkWeights

GROWTH: Final = 64  # positions by which each row's storage grows

Layers = list[tuple[np.ndarray, np.ndarray]]
"""The keys and values of one row at each layer, [H, L, W]."""


class Rows:
    """The rows, and the weights that they are decoded with."""

    def __init__(self, trunk: TrunkWeights, head: HeadWeights) -> None:
        self._trunk, self._head = trunk, head
        self._storage = self.empty()  # for each layer keys and values, [H, T, W]
        # [4, B] starts and lengths of the rows' prompts, then of their new tokens
        self._spans = np.empty((4, 0), np.int32)
        self._capacity = 0

    def new_batch(self) -> "Rows":
        """An empty batch with the same weights."""
        return Rows(self._trunk, self._head)

    def empty(self) -> Layers:
        """The keys and values of a row without tokens."""
        model = self._trunk.model
        empty = np.empty((model.kv_heads, 0, model.head_dim), np.float32)
        return [(empty, empty)] * model.layers

    def add(self, rows: Sequence[Layers]) -> None:
        """Append rows to be continued; a row may occur many times."""
        distinct = {id(row): row for row in rows}
        indices = {key: index for index, key in enumerate(distinct)}
        if rows:
            self._arrange(list(distinct.values()), [indices[id(row)] for row in rows])

    def _arrange(
        self, prompts: Sequence[Layers] = (), prompt_of: Sequence[int] = (), *, new_tokens: int = 1
    ) -> None:
        """Make storage for the rows, and for new ones that continue some of these prompts.

        Every row can take so many more tokens.
        """
        old_prompts, old_prompt_of = np.unique(self._spans[:2], axis=1, return_inverse=True)
        old_count = old_prompts.shape[1]
        indices = np.array([*old_prompt_of.reshape(-1), *(old_count + i for i in prompt_of)])
        lengths = np.array([*old_prompts[1], *(prompt[0][0].shape[1] for prompt in prompts)])
        starts = np.cumsum(lengths) - lengths
        lengths_after = np.array([*self._spans[3], *(0 for _ in prompt_of)])
        self._capacity = GROWTH * -(-(lengths_after.max() + new_tokens) // GROWTH)
        row_starts = lengths.sum() + self._capacity * np.arange(len(indices))
        positions = lengths.sum() + self._capacity * len(indices)
        moves = [
            *zip(old_prompts[0], starts, old_prompts[1], strict=False),
            *zip(self._spans[2], row_starts, self._spans[3], strict=False),
        ]
        for index, layer in enumerate(self._storage):
            arrays = (self._zeros(positions), self._zeros(positions))
            for old, new in zip(layer, arrays, strict=True):
                for source, target, length in moves:
                    new[:, target : target + length] = old[:, source : source + length]
            for start, prompt in zip(starts[old_count:], prompts, strict=True):
                for new, values in zip(arrays, prompt[index], strict=True):
                    new[:, start : start + values.shape[1]] = values
            self._storage[index] = arrays
        spans = [starts[indices], lengths[indices], row_starts, lengths_after]
        self._spans = np.array(spans, np.int32)

    def step(self, tokens: Sequence[int]) -> np.ndarray:
        """Append one token per row, and return the logits after it, [B, V]."""
        return self.extend([(token,) for token in tokens])

    def extend(self, pieces: Sequence[tuple[int, ...]]) -> np.ndarray:
        """Append a piece of tokens to each row, and return the logits after its last, [B, V].

        The logits have the same bits in any number of rows.
        """
        trunk, lengths = self._trunk, np.array([len(piece) for piece in pieces])
        if (self._spans[3] + lengths).max() > self._capacity:
            self._arrange(new_tokens=lengths.max())
        ends = np.cumsum(lengths)
        spans = np.repeat(self._spans, lengths, axis=1)
        spans[3] += 1 + np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)
        self._spans[3] += lengths
        for layer, (keys, values) in zip(trunk.layers, self._storage, strict=True):
            layer.key_cache, layer.value_cache = keys.ctypes.data, values.ctypes.data
        batch = trunk.batch(self._storage[0][0].shape[1], spans)
        states = trunk.embedded(np.concatenate(pieces))
        passes.run_pass(trunk.library.forward_pass, trunk, batch, states)
        return passes.next_logits(self._head, states[ends - 1])

    def keep(self, indices: Sequence[int]) -> None:
        """Drop all rows but these; the new row i is the old row indices[i]."""
        self._spans = self._spans[:, indices]

    def take(self, index: int) -> Layers:
        """Copy the keys and values of a row."""
        start, length, new_start, new_tokens = self._spans[:, index]
        positions = [*range(start, start + length), *range(new_start, new_start + new_tokens)]
        return [(keys[:, positions], values[:, positions]) for keys, values in self._storage]

    def _zeros(self, positions: int) -> np.ndarray:
        """An array in MLX's memory, which is counted there."""
        model = self._trunk.model
        array = mx.zeros((model.kv_heads, positions, model.head_dim))
        mx.eval(array)
        return np.asarray(array)
