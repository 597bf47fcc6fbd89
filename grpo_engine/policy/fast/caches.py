"""Caches of a prompt's keys and values that several completions share, with gradients."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.base import create_causal_mask
from mlx_lm.models.cache import KVCache


@dataclass(slots=True, eq=False)
class Layout:
    """Positions of each row's tokens: `lengths[b]` of the first `width` places, then the new ones.

    Rows of equal length need no padding; a plain causal mask and one offset suffice.
    """

    lengths: tuple[int, ...]  # [B] prompt tokens per row
    width: int
    prompt_of: tuple[int, ...] = ()  # [B] the prompt of each row
    offset: int | mx.array = field(init=False)
    _biases: dict[int, mx.array | None] = field(init=False, default_factory=dict)
    _masks: dict[tuple[int, int | None], mx.array] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.offset = self.width if self.even else mx.array(list(self.lengths), dtype=mx.int32)

    @property
    def even(self) -> bool:
        """Whether no row is padded."""
        return all(length == self.width for length in self.lengths)

    @property
    def group(self) -> int:
        """Rows per prompt, if equal for all and in the prompts' order; else 1."""
        rows = len(self.prompt_of)
        count = rows // (self.prompt_of[-1] + 1) if rows else 1
        return count if self.prompt_of == tuple(row // count for row in range(rows)) else 1

    def bias(self, group: int) -> mx.array | None:
        """-inf at the padding of every `group`-th row's prompt, [rows / group, 1, 1, width]."""
        if self.even:
            return None
        if group not in self._biases:
            lengths = mx.array(list(self.lengths[::group]), dtype=mx.int32)[:, None, None, None]
            self._biases[group] = mx.where(mx.arange(self.width) < lengths, 0.0, -mx.inf)
        return self._biases[group]

    def mask(self, new: int, window: int | None) -> mx.array:
        """Which keys each new token sees, [B, 1, new, width + new]."""
        if (new, window) not in self._masks:
            lengths = mx.array(list(self.lengths), dtype=mx.int32)[:, None]  # [B, 1]
            fresh = mx.arange(new)[None]
            queries = (lengths + fresh)[:, :, None]  # [B, new, 1] positions
            old = mx.arange(self.width)[None]
            keys = mx.concatenate([mx.where(old < lengths, old, 1 << 30), lengths + fresh], axis=1)[
                :, None, :
            ]  # padding is never visible
            seen = keys <= queries
            if window is not None:
                seen = seen & (queries - keys < window)
            self._masks[new, window] = seen[:, None]
        return self._masks[new, window]


class BiasedCache(KVCache):
    """A cache that masks the keys that the next token of each row must not see."""

    window: int | None
    prompt: tuple[mx.array, mx.array] | None  # keys and values that all rows share

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append the next token; return all keys and values."""
        raise NotImplementedError

    def append(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append the next token; return the rows' own keys and values."""
        raise NotImplementedError

    def make_mask(
        self, N: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | None:
        """The mask of a step, the same array for every layer, through mlx-lm's interface."""
        raise NotImplementedError

    def bias(self) -> mx.array | None:
        """Bias of each row's scores, 0 or -inf, [B, 1, 1, keys]; None if all keys are visible."""
        raise NotImplementedError


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

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append new keys and values; return all."""
        if self.keys is not None and self.values is not None:
            if self.shared:
                self.keys, self.values = self.for_rows()
                self.shared = False
            keys = mx.concatenate([self.keys, keys], axis=2)
            values = mx.concatenate([self.values, values], axis=2)
        self.take(keys, values)
        return keys, values

    def take(self, keys: mx.array, values: mx.array) -> None:
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
        assert self.keys is not None
        assert self.values is not None
        other = PrefixCache(self.window, layout)
        other.offset = layout.offset
        other.keys, other.values, other.shared = self.keys, self.values, True
        return other

    def for_rows(self) -> tuple[mx.array, mx.array]:
        """Keys and values, one copy per row."""
        assert self.keys is not None
        assert self.values is not None
        assert self.layout is not None
        rows = self.layout.prompt_of
        if self.keys.shape[0] == 1:
            return (
                mx.broadcast_to(self.keys, (len(rows), *self.keys.shape[1:])),
                mx.broadcast_to(self.values, (len(rows), *self.values.shape[1:])),
            )
        index = mx.array(list(rows), dtype=mx.int32)
        return self.keys[index], self.values[index]


class PackedCache:
    """Where the tokens of prompts, and then of their rows, are in one sequence without padding.

    All but attention computes each token for itself, so that one product serves them all.
    Axes: N tokens; P prompts of at most L tokens; B rows of at most T.
    """

    def __init__(self, prompts: Sequence[int], rows: Sequence[int], width: int, of: Layout) -> None:
        self.layout = of
        self.start = sum(prompts)  # of the rows' tokens
        mine = np.arange(of.width) < np.array(prompts)[:, None]
        theirs = np.arange(width) < np.array(rows)[:, None]
        used = np.concatenate([mine.reshape(-1), theirs.reshape(-1)])
        self._home = mx.array(np.flatnonzero(used).astype(np.int32))  # [N]
        places = np.where(used, np.cumsum(used) - 1, 0).astype(np.int32)  # padding: any token
        self.prompts = mx.array(places[: mine.size].reshape(mine.shape))  # [P, L]
        self.rows = mx.array(places[mine.size :].reshape(theirs.shape))  # [B, T]
        self._used = mx.array(mine)[..., None], mx.array(theirs)[..., None]  # [P, L, 1], [B, T, 1]
        self._full = bool(used.all())
        # MLX's own gradient of an index is slow: it adds, though no place is taken twice
        self.apart: Any = mx.custom_function(self._apart)
        self.apart.vjp(lambda _, given, __: self._together(*given))
        self.together: Any = mx.custom_function(self._together)
        self.together.vjp(lambda _, given, __: tuple(
            part if self._full else part * used
            for part, used in zip(self._apart(given), self._used, strict=True)
        ))  # fmt: skip

    def _apart(self, packed: mx.array) -> tuple[mx.array, mx.array]:
        """[N, ...] -> [P, L, ...] and [B, T, ...]."""
        if not self._full:
            return packed[self.prompts], packed[self.rows]
        first, second = mx.split(packed, [self.start])
        return mx.unflatten(first, 0, self.prompts.shape), mx.unflatten(second, 0, self.rows.shape)

    def _together(self, prompts: mx.array, rows: mx.array) -> mx.array:
        """[P, L, ...] and [B, T, ...] -> [N, ...]."""
        both = mx.concatenate([prompts.flatten(0, 1), rows.flatten(0, 1)])
        return both if self._full else both[self._home]

    def make_mask(self, N: int, **_: Any) -> None:
        """No mask: attention makes its own."""
