"""Gradient checkpointing of layers that is correct with a shared prompt."""

import copy
import functools
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from grpo_engine.policy.caches import Prefix
from grpo_engine.policy.trees import flatten, nest


def checkpoint_layers(model: nn.Module) -> None:
    """Make the layers of this model only recompute their forward in the backward pass."""
    for layer in model.layers:
        layer.__class__ = _checkpointed(type(layer))  # type: ignore[arg-type]


@functools.cache
def _checkpointed(layer_type: type) -> type:
    return type(f"{layer_type.__name__}Checkpointed", (layer_type,), {"__call__": _call})


def _call(layer: Any, *args: Any, **kwargs: Any) -> Any:
    """Run the layer as a pure function of (weights, arrays, arrays of caches).

    A cache is an argument and a result: recomputation gets a new cache with the arrays from before
    the call, so that nothing is appended twice.
    """
    plain = type(layer).__mro__[1].__call__
    if not layer.training:
        return plain(layer, *args, **kwargs)
    inputs: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
    arrays = {name: value for name, value in inputs.items() if isinstance(value, mx.array)}
    caches = {name: value for name, value in inputs.items() if isinstance(value, Prefix)}
    before = [copy.copy(cache) for cache in caches.values()]
    trained = flatten(layer.trainable_parameters())

    def run(weights: Any, new_arrays: list[mx.array], new_states: list[list[mx.array]]) -> Any:
        new_caches = [copy.copy(cache) for cache in before]
        for cache, state in zip(new_caches, new_states, strict=True):
            if state:
                cache.store(*state)
        values = inputs | dict(zip(arrays, new_arrays, strict=True))
        values |= zip(caches, new_caches, strict=True)
        layer.update(nest(weights))
        try:
            positional = [values[index] for index in range(len(args))]
            out = plain(layer, *positional, **{name: values[name] for name in kwargs})
        finally:
            layer.update(nest(trained))
        return out, [cache.arrays for cache in new_caches]

    states = [cache.arrays for cache in before]
    out, after = mx.checkpoint(run)(trained, list(arrays.values()), states)
    for cache, state in zip(caches.values(), after, strict=True):
        cache.store(*state)
    return out
