"""Rows decoded by compiled code for Linux processors, in storage of their own.

Row i has positions pads[i]:end of one block per layer. Rows that share a long prompt store its
tokens once and have no padding. Axes: n rows, H key heads, L tokens, W head width, V vocabulary.
"""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from grpo_engine.policy.caches import Layout, PrefixCache
from grpo_engine.policy.fast.decoding import CompiledStep
from grpo_engine.policy.memory import KERNEL_GROWTH
from grpo_engine.policy.policy import Policy
from grpo_engine.rollouts.batch import PREFILL_TOKENS, Cached, Prefilled, padded, portions

SHARED_FROM = 128  # prompt tokens from which rows of one prompt read the same keys and values

Layers = list[tuple[np.ndarray, np.ndarray]]
"""The keys and values of one row at each layer, [H, L, W]."""


class KernelBatch:
    """All rows as one batch, whose steps are compiled code."""

    runs_ahead = False

    def __init__(self, policy: Policy) -> None:
        assert policy.parts is not None
        self.policy = policy
        self.parts = policy.parts
        self.pads: list[int] = []
        self.end = 0
        self.shared = 0  # tokens
        self._step = CompiledStep(policy)
        self._storage: list[tuple[np.ndarray, ...]] = []  # as `fast.decoding.Storage`

    def prefill(self, prompts: Sequence[tuple[int, ...]]) -> list[Prefilled]:
        prefilled: list[Prefilled] = []
        for portion in portions(prompts):
            prefilled += self._prefill(prompts[portion])
        return prefilled

    def _prefill(self, prompts: Sequence[tuple[int, ...]]) -> list[Prefilled]:
        ids = padded(prompts, self.policy.pad_id)
        caches = [PrefixCache() for _ in self.parts.layers]
        last: list[mx.array | None] = [None] * len(prompts)
        for start in range(0, ids.shape[1], PREFILL_TOKENS):
            states = self.parts.hidden(ids[:, start : start + PREFILL_TOKENS], list(caches))
            for row, prompt in enumerate(prompts):
                index = len(prompt) - 1 - start
                if 0 <= index < states.shape[1]:
                    last[row] = states[row, index]
            mx.eval([cache.keys for cache in caches], [cache.values for cache in caches])
        logits = self.parts.logits(mx.stack([state for state in last if state is not None]))
        mx.eval(logits)
        arrays = [(np.asarray(cache.keys), np.asarray(cache.values)) for cache in caches]
        return [
            Prefilled(
                [(keys[row, :, : len(prompt)], values[row, :, : len(prompt)])
                 for keys, values in arrays],
                logits[row],
            )
            for row, prompt in enumerate(prompts)
        ]  # fmt: skip

    def extend(self, rows: Sequence[Cached], pieces: Sequence[tuple[int, ...]]) -> list[Prefilled]:
        extended: list[Prefilled] = []
        for portion in portions(pieces):
            extended += self._extend([row.caches for row in rows[portion]], pieces[portion])
        return extended

    def _extend(self, rows: Sequence[Layers], pieces: Sequence[tuple[int, ...]]) -> list[Prefilled]:
        lengths = tuple(row[0][0].shape[1] for row in rows)
        layout = Layout(lengths, max(lengths), tuple(range(len(rows))))
        caches = [PrefixCache(None, layout) for _ in self.parts.layers]
        for layer, cache in enumerate(caches):
            cache.offset = layout.offset
            cache.keys, cache.values = (
                mx.array(np.stack([
                    np.pad(row[layer][part], [(0, 0), (0, layout.width - length), (0, 0)])
                    for row, length in zip(rows, lengths, strict=True)
                ]))
                for part in (0, 1)
            )  # fmt: skip
        states = self.parts.hidden(padded(pieces, self.policy.pad_id), list(caches))
        ends = [(row, len(piece) - 1) for row, piece in enumerate(pieces)]
        logits = self.parts.logits(mx.stack([states[row, index] for row, index in ends]))
        mx.eval(logits, [(cache.keys, cache.values) for cache in caches])
        arrays = [(np.asarray(cache.keys), np.asarray(cache.values)) for cache in caches]
        return [
            Prefilled(
                [(_joined(keys[row], length, layout.width, len(piece)),
                  _joined(values[row], length, layout.width, len(piece)))
                 for keys, values in arrays],
                logits[row],
            )
            for row, (length, piece) in enumerate(zip(lengths, pieces, strict=True))
        ]  # fmt: skip

    def add(self, rows: Sequence[Prefilled]) -> None:
        """Append rows, with the last token at the common end."""
        if not rows:
            return
        new: list[Layers] = [row.caches for row in rows]
        if not self.pads:
            self._storage, self.end, self.shared = [], 0, 0
            if self._shares(new):
                self._share(new)
                return
        elif self.shared:
            self._stop_sharing()
        lengths = [row[0][0].shape[1] for row in new]
        count, left = len(self.pads), max(0, max(lengths) - self.end)
        self.end += left
        self.pads = [pad + left for pad in self.pads]
        if self._storage:
            self._pad(max(0, count + len(new) - self._storage[0][0].shape[0]), left, 0)
        else:
            self._storage = [
                tuple(zeros(len(new), array.shape[0], self.end + KERNEL_GROWTH, array.shape[2])
                      for array in layer)
                for layer in new[0]
            ]  # fmt: skip
        for layer, (keys, values) in enumerate(self._storage):
            for row, length in enumerate(lengths):
                place = slice(self.end - length, self.end)
                keys[count + row, :, place], values[count + row, :, place] = new[row][layer]
        self.pads += [self.end - length for length in lengths]
        self._step.use(self._storage)

    def _shares(self, new: Sequence[Layers]) -> bool:
        """Whether the rows begin with one prompt that is long."""
        first = new[0][0][0]
        return first.shape[1] >= SHARED_FROM and len(new) > 1 and all(row is new[0] for row in new)

    def _share(self, new: Sequence[Layers]) -> None:
        self.shared, self.pads = new[0][0][0].shape[1], [0] * len(new)
        for keys, values in new[0]:
            heads, _, width = keys.shape
            own = (zeros(len(new), heads, KERNEL_GROWTH, width) for _ in range(2))
            prompt = (np.ascontiguousarray(array[None]) for array in (keys, values))
            self._storage.append((*own, *prompt))
        self._step.use(self._storage)

    def _stop_sharing(self) -> None:
        """Copy the shared prompt for each row, since others join."""
        shared, self.shared = self.shared, 0
        stored = self._storage
        self._storage = [layer[:2] for layer in stored]
        self._pad(0, shared, KERNEL_GROWTH)
        for layer, (_, _, *prompt) in zip(self._storage, stored, strict=True):
            for own, before in zip(layer, prompt, strict=True):
                own[:, :, :shared] = before
        self.end += shared

    def _pad(self, rows: int, left: int, right: int) -> None:
        """Add rows, and positions on the left and right; one layer at a time, to save memory."""
        for index, (keys, values, *prompt) in enumerate(self._storage):
            larger = (_padded(array, rows, left, right) for array in (keys, values))
            self._storage[index] = (*larger, *prompt)

    def step(self, tokens: mx.array) -> mx.array:
        if self._storage[0][0].shape[2] <= self.end:
            self._grow()
        ids: list[int] = tokens.tolist()  # type: ignore[assignment]
        logits = self._step.logits(ids, self.pads, self.end)
        self.end += 1
        return mx.array(logits)

    def _grow(self) -> None:
        """Drop positions that no row uses, and add new ones."""
        unused = min(self.pads)
        if unused >= KERNEL_GROWTH // 4:
            self._storage = [
                (*(array[:, :, unused:] for array in layer[:2]), *layer[2:])
                for layer in self._storage
            ]
            self.pads = [pad - unused for pad in self.pads]
            self.end -= unused
        self._pad(0, 0, KERNEL_GROWTH)
        self._step.use(self._storage)

    def keep(self, indices: Sequence[int]) -> None:
        moves = [(to, index) for to, index in enumerate(indices) if to != index]
        self.pads = [self.pads[index] for index in indices]
        to, index = [to for to, _ in moves], [index for _, index in moves]
        for keys, values, *_ in self._storage:
            keys[to], values[to] = keys[index], values[index]

    def take(self, indices: Sequence[int]) -> list[Cached]:
        taken = []
        for index in indices:
            row = slice(self.pads[index], self.end)
            layers = []
            for keys, values, *prompt in self._storage:
                own = (keys[index, :, row], values[index, :, row])
                before = [array[0] for array in prompt] if self.shared else []
                layers.append(tuple(
                    np.concatenate([*before[part : part + 1], own[part]], axis=1)
                    for part in (0, 1)
                ))  # fmt: skip
            taken.append(Cached(layers))
        return taken


def zeros(*shape: int) -> np.ndarray:
    """An array in MLX's memory, which is counted there."""
    array = mx.zeros(shape)
    mx.eval(array)
    return np.asarray(array)


def _padded(array: np.ndarray, rows: int, left: int, right: int) -> np.ndarray:
    count, heads, room, width = array.shape
    larger = zeros(count + rows, heads, left + room + right, width)
    larger[:count, :, left : left + room] = array
    return larger


def _joined(array: np.ndarray, before: int, width: int, new: int) -> np.ndarray:
    """One row of a padded array, [H, width + new, W], without its padding."""
    return np.concatenate([array[:, :before], array[:, width : width + new]], axis=1)
