"""Rows that are decoded together by compiled steps, `decode.c`, with their keys and values.

Row i has positions starts[i]:end of one block per layer. Rows that share a long prompt store its
keys and values once and have no padding. Axes: n rows, H key heads, L tokens, W head width.
"""

from collections.abc import Sequence
from typing import Final

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from grpo_engine.cpu.structs import Step
from grpo_engine.cpu.weights import HeadWeights, TrunkWeights

GROWTH: Final = 64  # positions by which the storage grows
SHARED_FROM: Final = 128  # prompt tokens from which rows of one prompt read the same keys

Layers = Sequence[tuple[np.ndarray, np.ndarray]]
"""The keys and values of one row at each layer, [H, L, W]."""


class Rows:
    """The rows, and the weights that they are decoded with."""

    def __init__(self, trunk: nn.Module, head: nn.Module) -> None:
        self._trunk, self._head = TrunkWeights(trunk), HeadWeights(head)
        self._starts: list[int] = []
        self._end = 0
        self._prompt_length = 0  # of a prompt that all rows share
        # for each layer keys and values, [n, H, capacity, W], and those of a shared prompt
        self._storage: list[tuple[np.ndarray, ...]] = []

    @property
    def head_dim(self) -> int:
        """The width of a head's keys and values."""
        head_dim: int = self._trunk.head_dim
        return head_dim

    def add(self, rows: Sequence[Layers]) -> None:
        """Append rows, with the last token at the common end; a row may occur many times."""
        if not rows:
            return
        if not self._starts:
            self._storage, self._end, self._prompt_length = [], 0, 0
            if _shares_prompt(rows):
                self._share(rows[0], len(rows))
                return
        elif self._prompt_length:
            self._stop_sharing()
        lengths = [row[0][0].shape[1] for row in rows]
        count, left = len(self._starts), max(0, max(lengths) - self._end)
        self._end += left
        self._starts = [start + left for start in self._starts]
        if self._storage:
            self._pad(max(0, count + len(rows) - self._storage[0][0].shape[0]), left, 0)
        else:
            self._storage = [
                tuple(_zeros(len(rows), array.shape[0], self._end + GROWTH, array.shape[2])
                      for array in layer)
                for layer in rows[0]
            ]  # fmt: skip
        for layer, (keys, values) in enumerate(self._storage):
            for row, length in enumerate(lengths):
                positions = slice(self._end - length, self._end)
                keys[count + row, :, positions], values[count + row, :, positions] = rows[row][
                    layer
                ]
        self._starts += [self._end - length for length in lengths]
        self._use_storage()

    def _share(self, row: Layers, count: int) -> None:
        self._prompt_length, self._starts = row[0][0].shape[1], [0] * count
        for keys, values in row:
            heads, _, head_dim = keys.shape
            empty = (_zeros(count, heads, GROWTH, head_dim) for _ in range(2))
            prompt = (np.ascontiguousarray(array[None]) for array in (keys, values))
            self._storage.append((*empty, *prompt))
        self._use_storage()

    def _stop_sharing(self) -> None:
        """Copy the shared prompt for each row, since others join."""
        length, self._prompt_length = self._prompt_length, 0
        shared = self._storage
        self._storage = [layer[:2] for layer in shared]
        self._pad(0, length, GROWTH)
        for layer, (_, _, *prompt) in zip(self._storage, shared, strict=True):
            for array, prefix in zip(layer, prompt, strict=True):
                array[:, :, :length] = prefix
        self._end += length

    def _pad(self, rows: int, left: int, right: int) -> None:
        """Add rows, and positions on the left and right; one layer at a time, to save memory."""
        for index, (keys, values, *prompt) in enumerate(self._storage):
            larger = (_padded(array, rows, left, right) for array in (keys, values))
            self._storage[index] = (*larger, *prompt)

    def _use_storage(self) -> None:
        names = ("key_cache", "value_cache", "prompt_keys", "prompt_values")
        for layer, arrays in zip(self._trunk.layers, self._storage, strict=True):
            for name, array in zip(names, arrays, strict=False):
                setattr(layer, name, array.ctypes.data)

    def step(self, tokens: Sequence[int]) -> np.ndarray:
        """Append one token per row, and return the logits after it, [n, V]."""
        if self._storage[0][0].shape[2] <= self._end:
            self._grow()
        trunk, head, count = self._trunk, self._head, len(tokens)
        starts = np.array(self._starts, np.int32)
        cos_sin = trunk.cos_sin(self._prompt_length + self._end - starts)
        step = Step(
            rows=count, capacity=self._storage[0][0].shape[2], position=self._end,
            prompt_length=self._prompt_length, starts=starts.ctypes.data,
            cos_sin=cos_sin.ctypes.data,
        )  # fmt: skip
        states = trunk.embedded(np.array(tokens))
        workspace = np.empty(trunk.library.decode_workspace(trunk.model, step), np.float32)
        logits = np.empty((count, head.vocabulary), np.float32)
        trunk.library.decode_layers(
            trunk.model, trunk.layers, step, states.ctypes.data, workspace.ctypes.data
        )
        trunk.library.decode_head(
            trunk.model, count, head.vocabulary, trunk.norm, head.linear, states.ctypes.data,
            logits.ctypes.data,
        )  # fmt: skip
        self._end += 1
        return logits

    def _grow(self) -> None:
        """Drop positions that no row uses, and add new ones."""
        unused = min(self._starts)
        if unused >= GROWTH // 4:
            self._storage = [
                (*(array[:, :, unused:] for array in layer[:2]), *layer[2:])
                for layer in self._storage
            ]
            self._starts = [start - unused for start in self._starts]
            self._end -= unused
        self._pad(0, 0, GROWTH)
        self._use_storage()

    def keep(self, indices: Sequence[int]) -> None:
        """Drop all rows but these; the new row i is the old row indices[i]."""
        moves = [(to, index) for to, index in enumerate(indices) if to != index]
        self._starts = [self._starts[index] for index in indices]
        to, index = [to for to, _ in moves], [index for _, index in moves]
        for keys, values, *_ in self._storage:
            keys[to], values[to] = keys[index], values[index]

    def take(self, index: int) -> Layers:
        """Copy the keys and values of a row."""
        positions = slice(self._starts[index], self._end)
        layers = []
        for keys, values, *prompt in self._storage:
            row = (keys[index, :, positions], values[index, :, positions])
            prefix = [array[0] for array in prompt] or [array[:, :0] for array in row]
            layers.append((
                np.concatenate([prefix[0], row[0]], axis=1),
                np.concatenate([prefix[1], row[1]], axis=1),
            ))  # fmt: skip
        return layers


def _shares_prompt(rows: Sequence[Layers]) -> bool:
    """Whether the rows begin with the same prompt, and it is long."""
    length = rows[0][0][0].shape[1]
    return length >= SHARED_FROM and len(rows) > 1 and all(row is rows[0] for row in rows)


def _zeros(*shape: int) -> np.ndarray:
    """An array in MLX's memory, which is counted there."""
    array = mx.zeros(shape)
    mx.eval(array)
    return np.asarray(array)


def _padded(array: np.ndarray, rows: int, left: int, right: int) -> np.ndarray:
    count, heads, capacity, head_dim = array.shape
    larger = _zeros(count + rows, heads, left + capacity + right, head_dim)
    larger[:count, :, left : left + capacity] = array
    return larger
