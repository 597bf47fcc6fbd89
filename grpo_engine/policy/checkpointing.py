"""Gradient checkpointing of layers that is correct with a shared prompt."""

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from grpo_engine.policy.caches import Layout, PrefixCache
from grpo_engine.policy.trees import flatten, nest

State = tuple[mx.array, mx.array]
_CLASSES: dict[type, type] = {}


def checkpoint_layers(model: nn.Module) -> None:
    """Make the layers of this model only recompute their forward in the backward pass."""
    for layer in model.layers:
        kind = type(layer)
        if kind not in _CLASSES:
            _CLASSES[kind] = type(f"{kind.__name__}Checkpointed", (kind,), {"__call__": _call})
        layer.__class__ = _CLASSES[kind]


def _call(layer: Any, *args: Any, **kwargs: Any) -> Any:
    """Run the layer as a pure function of (weights, arrays, keys, values).

    A cache is an argument and a result: recomputation gets a new cache with the keys, values and
    offset from before the call, so that nothing is appended twice.
    """
    plain = type(layer).__mro__[1].__call__
    if not layer.training:
        return plain(layer, *args, **kwargs)
    names = tuple(kwargs)
    given = [*args, *kwargs.values()]
    caches = [value for value in given if isinstance(value, PrefixCache)]
    blanks = [_Blank(cache.window, cache.layout, cache.offset, cache.shared) for cache in caches]
    places = [i for i, value in enumerate(given) if isinstance(value, mx.array)]
    held = flatten(layer.trainable_parameters())

    def run(weights: Any, arrays: list[mx.array], states: list[State]) -> Any:
        values = list(given)
        for place, array in zip(places, arrays, strict=True):
            values[place] = array
        fresh = [blank.fill(state) for blank, state in zip(blanks, states, strict=True)]
        after = iter(fresh)
        values = [next(after) if isinstance(v, PrefixCache) else v for v in values]
        layer.update(nest(weights))
        try:
            keywords = dict(zip(names, values[len(args) :], strict=True))
            out = plain(layer, *values[: len(args)], **keywords)
        finally:
            layer.update(nest(held))
        return out, [(cache.keys, cache.values) for cache in fresh]

    arrays = [given[place] for place in places]
    out, after = mx.checkpoint(run)(held, arrays, [_state(cache) for cache in caches])
    for cache, (keys, values) in zip(caches, after, strict=True):
        cache.take(keys, values)
    return out


def _state(cache: PrefixCache) -> State:
    """Keys and values; empty arrays before the first token."""
    if cache.keys is None or cache.values is None:
        return mx.zeros((0,)), mx.zeros((0,))
    return cache.keys, cache.values


@dataclass(frozen=True, slots=True, eq=False)
class _Blank:
    """A cache without its keys and values."""

    window: int | None
    layout: Layout | None
    offset: int | mx.array
    shared: bool

    def fill(self, state: State) -> PrefixCache:
        cache = PrefixCache(self.window, self.layout)
        if state[0].size:
            cache.keys, cache.values = state
        cache.offset, cache.shared = self.offset, self.shared
        return cache
