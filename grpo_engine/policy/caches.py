"""Caches of a prompt that several completions share, with gradients: keys and values, or states."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.base import create_causal_mask
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache, make_prompt_cache

from grpo_engine.platform.faults import raise_fault
from grpo_engine.policy.structure import UNKNOWN, Structure, agrees


@dataclass(slots=True, eq=False)
class Layout:
    """Positions of each row's tokens: the first `lengths[b]` of `width`, then the new ones.

    Rows of equal length need no padding; a plain causal mask and one offset suffice.
    """

    lengths: tuple[int, ...]  # [B] prompt tokens per row
    width: int
    prompt_of: tuple[int, ...] = ()  # [B] the prompt of each row
    offset: int | mx.array = field(init=False)
    _masks: dict[tuple[int, int | None], mx.array] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.offset = self.width if self.even else mx.array(list(self.lengths), dtype=mx.int32)

    @property
    def even(self) -> bool:
        """Whether no row is padded."""
        return all(length == self.width for length in self.lengths)

    def mask(self, new: int, window: int | None) -> mx.array:
        """Which keys each new token sees, [B, 1, new, width + new]."""
        if (new, window) not in self._masks:
            lengths_B1 = mx.array(list(self.lengths), dtype=mx.int32)[:, None]
            new_BT = lengths_B1 + mx.arange(new)
            old_S = mx.arange(self.width)
            # The position of padding is beyond all others, so that no token sees it.
            old_BS = mx.where(old_S < lengths_B1, old_S, 1 << 30)
            keys_B1S = mx.concatenate([old_BS, new_BT], axis=1)[:, None]
            distance_BTS = new_BT[:, :, None] - keys_B1S
            visible_BTS = distance_BTS >= 0
            if window is not None:
                visible_BTS = visible_BTS & (distance_BTS < window)
            self._masks[new, window] = visible_BTS[:, None]
        return self._masks[new, window]


class PrefixCache(KVCache):
    """One layer's keys and values; concatenated, never written in place.

    While `shared`, they are stored once per prompt; a model's own code gets a copy per row.
    """

    keys: mx.array | None
    values: mx.array | None
    offset: int | mx.array  # type: ignore[assignment]  # mlx-lm batches have one per row

    def __init__(self, window: int | None = None, layout: Layout | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.window = window
        self.layout = layout
        self.shared = False

    @property
    def arrays(self) -> list[mx.array]:
        """Keys and values; none before the first token."""
        return [] if self.keys is None or self.values is None else [self.keys, self.values]

    def new(self, lengths: Sequence[int]) -> "PrefixCache":  # noqa: ARG002 - padding is masked
        """An empty cache for prompts of these lengths."""
        return copy.copy(self)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append new keys and values; return all."""
        if self.keys is not None and self.values is not None:
            if self.shared:
                self.keys, self.values = self.for_rows()
                self.shared = False
            keys = mx.concatenate([self.keys, keys], axis=2)
            values = mx.concatenate([self.values, values], axis=2)
        self.store(keys, values)
        return keys, values

    def store(self, keys: mx.array, values: mx.array) -> None:
        """Store keys and values; without a layout the next token follows them."""
        self.keys, self.values = keys, values
        if self.layout is None:
            self.offset = keys.shape[2]

    def make_mask(
        self,
        N: int,
        return_array: bool = False,
        window_size: int | None = None,
    ) -> mx.array | str | None:
        """The mask for `N` new tokens, through mlx-lm's interface."""
        window = window_size or self.window
        if self.layout is not None and not self.layout.even:
            return self.layout.mask(N, window)
        offset = self.layout.width if self.layout else self.offset
        assert isinstance(offset, int)
        if window is not None and offset + N <= window:
            window = None
        if window is not None or return_array:
            mask: mx.array = create_causal_mask(N, offset, window_size=window)
            return mask
        return None if N == 1 else "causal"

    def spread(self, layout: Layout) -> "PrefixCache":
        """The same prompts' keys and values for the rows of a layout."""
        cache = copy.copy(self)
        cache.layout, cache.offset, cache.shared = layout, layout.offset, True
        return cache

    def for_rows(self) -> tuple[mx.array, mx.array]:
        """Keys and values, one copy per row."""
        assert self.keys is not None
        assert self.values is not None
        assert self.layout is not None
        rows = list(self.layout.prompt_of)
        keys, values = (
            mx.broadcast_to(array, (len(rows), *array.shape[1:]))
            if len(array) == 1
            else array[mx.array(rows)]
            for array in (self.keys, self.values)
        )
        return keys, values


class PrefixState(ArraysCache):
    """One layer's recurrent and convolution states; arrays are replaced, never written in place."""

    cache: list[mx.array | None]  # type: ignore[assignment]  # mlx-lm has no types
    lengths: mx.array | None  # type: ignore[assignment]

    def __setitem__(self, index: int, value: mx.array) -> None:
        self.cache = [*self.cache[:index], value, *self.cache[index + 1 :]]  # copies share the list

    @property
    def arrays(self) -> list[mx.array]:
        """The states; none before the first token."""
        return [array for array in self.cache if array is not None]

    def store(self, *arrays: mx.array) -> None:
        """Replace the states."""
        self.cache = list(arrays)

    def new(self, lengths: Sequence[int]) -> "PrefixState":
        """An empty cache for right-padded prompts of these lengths."""
        cache = copy.copy(self)
        if len(set(lengths)) > 1:
            cache.lengths = mx.array(list(lengths))
        return cache

    def advance(self, N: int) -> None:  # noqa: ARG002 - mlx-lm's signature
        """After the prompts no token is padding that others follow."""
        self.lengths = None

    def spread(self, layout: Layout) -> "PrefixState":
        """The same prompts' states for the rows of a layout."""
        cache = copy.copy(self)
        cache.lengths = None
        cache.store(*(array[mx.array(list(layout.prompt_of))] for array in self.arrays))
        return cache


Prefix = PrefixCache | PrefixState


def prefix_caches(parts: Structure, probe: mx.array, tolerance: float) -> list[Prefix] | None:
    """An empty cache for each layer if rows can share a prompt's; else None.

    The probe's two rows are run as prompts of different length with two completions each, to test
    padding, offsets and masks.
    """
    try:
        empty = empty_prefixes(parts.model)
        if empty is None:
            return None
        length = probe.shape[1] // 2
        caches = [cache.new((length, length - 1)) for cache in empty]
        parts.hidden(probe[:, :length], caches)
        rows, lengths = (0, 0, 1, 1), (length, length, length - 1, length - 1)
        spread = [cache.spread(Layout(lengths, length, rows)) for cache in caches]
        starts = list(zip(rows, lengths, strict=True))
        completions = mx.stack([probe[row, start : start + 2] for row, start in starts])
        shared = parts.hidden(completions, spread)
        separate = parts.hidden(probe)
        expected = mx.stack([separate[row, start : start + 2] for row, start in starts])
        return empty if agrees(shared, expected, tolerance) else None
    except UNKNOWN as error:
        raise_fault(error)
        return None  # an unknown kind of model: its prompts run per row


def empty_prefixes(model: nn.Module) -> list[Prefix] | None:
    """An empty cache for each layer; None if a layer has one of another kind."""
    caches: list[Prefix] = []
    for cache in make_prompt_cache(model):
        if type(cache) is KVCache:
            caches.append(PrefixCache())
        elif type(cache) is RotatingKVCache and cache.keep == 0:
            caches.append(PrefixCache(int(cache.max_size)))
        elif type(cache) is ArraysCache:
            caches.append(PrefixState(len(cache.cache)))
        else:
            return None
    return caches
