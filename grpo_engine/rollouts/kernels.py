"""Rows decoded by compiled kernels, whose prompts run by MLX's graph."""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import KVCache

from grpo_engine.cpu.rows import Layers
from grpo_engine.policy.policy import Policy
from grpo_engine.rollouts.graph import Caches, GraphBatch, Prefilled


class KernelBatch(GraphBatch):
    """All rows as one batch, in the kernels' storage."""

    is_async = False

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        assert policy.kernels is not None
        self.rows = policy.kernels.rows()

    def add(self, rows: Sequence[Prefilled]) -> None:
        distinct = {id(row): row for row in rows}
        layers = {key: _layers(row.extract()) for key, row in distinct.items()}
        self.rows.add([layers[id(row)] for row in rows])

    def step(self, tokens: mx.array) -> mx.array:
        ids: list[int] = tokens.tolist()  # type: ignore[assignment]
        return mx.array(self.rows.step(ids))

    def select(self, indices: Sequence[int]) -> None:
        self.rows.keep(indices)

    def copies(self, indices: Sequence[int]) -> list[Caches]:
        return [_caches(self.rows.take(index)) for index in indices]


def _layers(caches: Sequence[KVCache]) -> Layers:
    arrays = [cache.keys_and_values() for cache in caches]
    mx.eval(arrays)
    return [(np.asarray(keys)[0], np.asarray(values)[0]) for keys, values in arrays]


def _caches(layers: Layers) -> Caches:
    caches = []
    for keys, values in layers:
        cache = KVCache()
        cache.state = mx.array(keys[None]), mx.array(values[None]), keys.shape[1]
        caches.append(cache)
    return caches
