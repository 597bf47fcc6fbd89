"""Gradient checkpointing of layers that is correct with a shared prompt."""

import copy
import functools
from collections.abc import Iterable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map

from grpo_engine.policy.caches import Prefix
from grpo_engine.policy.trees import flatten, nest


def checkpoint_layers(model: nn.Module) -> None:
    """Make the layers of this model only recompute their forward in the backward pass."""
    for layer in model.layers:
        if type(layer).__call__ is not _call:
            layer.__class__ = _checkpointed(type(layer))  # type: ignore[arg-type]


def checkpoint(run: Any) -> Any:
    """The function, which runs again in the backward pass."""
    function = mx.custom_function(run)
    function.vjp(lambda inputs, cotangents, _: gradients(run, inputs, cotangents))
    return function


def gradients(run: Any, inputs: Any, cotangents: Any) -> Any:
    """Gradients of a function that runs again when the cotangents are there.

    All are computed before any is used, so that one layer's arrays at a time are in memory.
    """
    outer = list(flatten(cotangents).values())

    def outputs(*arrays: mx.array) -> list[mx.array]:
        return list(flatten(run(*_like(inputs, arrays))).values())

    _, found = mx.vjp(outputs, mx.depends(list(flatten(inputs).values()), outer), outer)
    return _like(inputs, mx.depends(found, found))


def _like(tree: Any, arrays: Iterable[mx.array]) -> Any:
    """A tree with other arrays."""
    rest = iter(arrays)
    return tree_map(lambda _: next(rest), tree)


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
    out, after = checkpoint(run)(trained, list(arrays.values()), states)
    for cache, state in zip(caches.values(), after, strict=True):
        cache.store(*state)
    return out
