"""Keys and values in few bits while rows are decoded: of one row, or of a batch.

mlx-lm's own quantised cache holds rows of equal length and cannot be merged. Here codes, scales and
biases are each in a cache of mlx-lm's, which merges, filters and extends them as it does numbers.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import KVCache, make_prompt_cache

GROUP = 32  # numbers with a scale and a bias


class QuantizedCache:
    """One layer's cache; mlx-lm's attention reads `bits` and `group_size`."""

    group_size = GROUP

    def __init__(self, bits: int, parts: Sequence[Any]) -> None:
        self.bits, self.parts = bits, parts  # codes, scales, biases

    @property
    def offset(self) -> Any:
        return self.parts[0].offset

    @property
    def state(self) -> list[Any]:
        return [part.state for part in self.parts]

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Any, ...]:
        """Append new keys and values; return all, each as codes, scales and biases."""
        new = [mx.quantize(a, group_size=self.group_size, bits=self.bits) for a in (keys, values)]
        columns = zip(self.parts, *new, strict=True)
        fetched = [part.update_and_fetch(*pair) for part, *pair in columns]
        return tuple(zip(*fetched, strict=True))

    def make_mask(self, *args: Any, **options: Any) -> Any:
        return self.parts[0].make_mask(*args, **options)

    @classmethod
    def merge(cls, rows: Sequence["QuantizedCache"]) -> "QuantizedCache":
        """A batch of these rows."""
        columns = zip(*(row.parts for row in rows), strict=True)
        return cls(rows[0].bits, [type(parts[0]).merge(list(parts)) for parts in columns])

    def extract(self, index: int) -> "QuantizedCache":
        return QuantizedCache(self.bits, [part.extract(index) for part in self.parts])

    def extend(self, other: "QuantizedCache") -> None:
        for part, new in zip(self.parts, other.parts, strict=True):
            part.extend(new)

    def filter(self, indices: mx.array) -> None:
        for part in self.parts:
            part.filter(indices)

    def prepare(self, **padding: Any) -> None:
        for part in self.parts:
            part.prepare(**padding)

    def finalize(self) -> None:
        for part in self.parts:
            part.finalize()


def empty_caches(model: nn.Module, bits: int) -> list[Any]:
    """The caches of a row without tokens, in so many bits if not 0; windows and states stay."""
    return [
        QuantizedCache(bits, [KVCache() for _ in range(3)])
        if bits and type(cache) is KVCache
        else cache
        for cache in make_prompt_cache(model)
    ]


def bits_of(model: nn.Module, bits: int, dtype_bits: int) -> float:
    """Bits per cached number, on average over the layers; each group has a scale and a bias."""
    if not bits:
        return dtype_bits
    quantized_bits = bits + 2 * dtype_bits / GROUP
    layers = [isinstance(cache, QuantizedCache) for cache in empty_caches(model, bits)]
    return sum(quantized_bits if quantized else dtype_bits for quantized in layers) / len(layers)
