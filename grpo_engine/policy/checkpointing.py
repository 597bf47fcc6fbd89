"""Gradient checkpointing of layers that is correct with a shared prompt."""

import copy
import functools
from collections.abc import Iterable
from types import NoneType
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map

from grpo_engine.policy.caches import Prefix
from grpo_engine.policy.trees import flatten, nest

KNOWN = (mx.array, Prefix, str, int, float, NoneType)  # arguments that a second run can be given


def checkpoint_layers(model: nn.Module) -> None:
    """Make the layers of this model recompute their forward in the backward pass."""
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

    _, inner = mx.vjp(outputs, mx.depends(list(flatten(inputs).values()), outer), outer)
    return _like(inputs, mx.depends(inner, inner))


def _like(tree: Any, leaves: Iterable[Any], kind: Any = mx.array) -> Any:
    """The tree with its leaves of a kind replaced, in order."""
    rest = iter(leaves)
    return tree_map(lambda leaf: next(rest) if isinstance(leaf, kind) else leaf, tree)


@functools.cache
def _checkpointed(layer_type: type) -> type:
    return type(f"{layer_type.__name__}Checkpointed", (layer_type,), {"__call__": _call})


def _call(layer: Any, *args: Any, **kwargs: Any) -> Any:
    """Run the layer as a pure function of (weights, arrays, arrays of caches).

    A cache is an argument and a result: recomputation gets a new cache with the arrays from before
    the call, so that nothing is appended twice. A layer that gets another kind of object runs
    plainly: arrays that it reads or leaves there would have no gradient.
    """
    plain = type(layer).__mro__[1].__call__
    inputs: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
    leaves: list[Any] = list(flatten(inputs).values())
    if not layer.training or not all(isinstance(leaf, KNOWN) for leaf in leaves):
        return plain(layer, *args, **kwargs)
    arrays = [leaf for leaf in leaves if isinstance(leaf, mx.array)]
    caches = [leaf for leaf in leaves if isinstance(leaf, Prefix)]
    before = [copy.copy(cache) for cache in caches]
    trained = flatten(layer.trainable_parameters())
    layout: Any = None  # the result of a run, with indices in place of its arrays

    def run(weights: Any, new_arrays: list[mx.array], new_states: list[list[mx.array]]) -> Any:
        nonlocal layout
        new_caches = [copy.copy(cache) for cache in before]
        for cache, state in zip(new_caches, new_states, strict=True):
            if state:
                cache.store(*state)
        values = _like(_like(inputs, new_arrays), new_caches, Prefix)
        layer.update(nest(weights))
        try:
            positional = [values[index] for index in range(len(args))]
            out = plain(layer, *positional, **{name: values[name] for name in kwargs})
        finally:
            layer.update(nest(trained))
        layout, outputs = _unique((out, [cache.arrays for cache in new_caches]))
        return outputs

    outputs = checkpoint(run)(trained, arrays, [cache.arrays for cache in before])
    out, states = tree_map(lambda leaf: outputs[leaf] if isinstance(leaf, Index) else leaf, layout)
    for cache, state in zip(caches, states, strict=True):
        cache.store(*state)
    return out


class Index(int):
    """An index into the arrays of a tree."""


def _unique(tree: Any) -> tuple[Any, list[mx.array]]:
    """A tree with indices of its arrays, each of which occurs once: its gradient is a sum.

    Of an array that a function returns twice, such as keys that are in a cache as well, MLX takes
    the gradient of one.
    """
    arrays = {id(leaf): leaf for leaf in flatten(tree).values() if isinstance(leaf, mx.array)}
    index = {key: Index(number) for number, key in enumerate(arrays)}
    return tree_map(lambda leaf: index.get(id(leaf), leaf), tree), list(arrays.values())
