"""Counts the arrays that a backward pass keeps, in the graph of a model, with or without weights.

A row of tokens is traced through the layers and back; nothing is computed. Attention by MLX's
function is left out of the graph and counted by its calls, for it may run in chunks.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx_lm.models.gated_delta
import numpy as np

from grpo_engine.policy import gated_delta
from grpo_engine.policy.trees import flatten

TOKENS = 127  # of the row: no other dimension of a model, and almost two chunks of 64
VIEWS = {
    "AsStrided",
    "Broadcast",
    "Depends",
    "ExpandDims",
    "Flatten",
    "Reshape",
    "Slice",
    "Split",
    "Squeeze",
    "StopGradient",
    "Transpose",
    "Unflatten",
}
PRODUCTS = {"AddMM", "GatherMM", "GatherQMM", "Matmul", "QuantizedMatmul"}  # no output in an input


@dataclass(frozen=True, slots=True)
class Activations:
    """What a forward and backward pass through the layers has in memory at its peak."""

    token: float  # bytes per token
    pair: float  # bytes per pair of tokens, of attention that is not MLX's function
    heads: tuple[int, ...]  # of each call of MLX's function
    keys: int  # numbers per token in keys and values of all calls


def trace(module: nn.Module, hidden: Any) -> Activations | None:
    """Trace `hidden`, a function of ids [1, L] that runs the layers of `module`, if it can be."""
    records: list[Mapping[str, Any]] = []
    calls: list[tuple[int, int]] = []

    def attend(q: mx.array, k: mx.array, v: mx.array, **_: Any) -> mx.array:
        calls.append((q.shape[1], k.shape[1] * (k.shape[3] + v.shape[3])))
        return _reading(q[..., :1] + mx.zeros((*q.shape[:3], v.shape[3]), q.dtype), q, k, v)

    def gradients(ids: mx.array) -> list[mx.array]:
        _, found = nn.value_and_grad(module, lambda: hidden(ids).sum())()
        return list(flatten(found).values())

    training = module.training
    try:
        with _stand_ins(attend):
            module.train()
            mx.export_function(records.append, gradients, mx.zeros((1, TOKENS), mx.int32))
    except ValueError:  # dbrx reads numbers while its graph is built
        return None
    finally:
        module.train(training)
    linear, square = _peak(records)
    return Activations(
        linear / TOKENS,
        square / TOKENS**2,
        tuple(heads for heads, _ in calls),
        sum(k for _, k in calls),
    )


@contextmanager
def _stand_ins(attend: Any) -> Iterator[None]:
    """Replace what has a gradient of its own, which cannot be exported."""
    places: list[tuple[Any, str, Any]] = [
        (mx.fast, "scaled_dot_product_attention", attend),
        (mx, "checkpoint", lambda function: function),
        (mx, "gather_mm", _gather_mm),
        (gated_delta, "_recurrence", _recurrence),
        (mlx_lm.models.gated_delta, "gated_delta_ops", gated_delta.gated_delta_chunks),
    ]
    plain = [getattr(owner, name) for owner, name, _ in places]
    try:
        for owner, name, function in places:
            setattr(owner, name, function)
        yield
    finally:
        for (owner, name, _), function in zip(places, plain, strict=True):
            setattr(owner, name, function)


def _recurrence(state: mx.array, *arrays: mx.array) -> tuple[mx.array, mx.array, mx.array]:
    """As the gated delta rule keeps its inputs for its backward pass."""
    return state, _reading(arrays[2], state, *arrays), state[None]


def _gather_mm(a: mx.array, b: mx.array, *, rhs_indices: mx.array, **_: Any) -> mx.array:
    """A product with one matrix of several for each row, whose gradient cannot be exported."""
    rows = np.broadcast_shapes(a.shape[:-2], rhs_indices.shape)
    return _reading(a[..., :1] + mx.zeros((*rows, a.shape[-2], b.shape[-1]), a.dtype), a)


def _reading(output: mx.array, *inputs: mx.array) -> mx.array:
    """The output, with a gradient that reads all inputs."""
    ends = [(array * array[(0,) * array.ndim]).sum() for array in inputs]
    return mx.stop_gradient(output) + mx.stack(ends).sum().astype(output.dtype)


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of the graph; a view stands for the array that it is of."""

    name: str
    read: set[str]
    new: dict[str, np.ndarray]  # bytes of each: [of other shapes, of tokens x tokens]


def _operations(
    records: Sequence[Mapping[str, Any]], array_of: dict[str, str]
) -> Iterator[Operation]:
    """The operations on what depends on the input; `array_of` gets the array of each view."""
    strided: set[str] = set()
    for record in records:
        if record["type"] == "inputs":
            array_of |= {name: name for name, _, _ in record["inputs"]}
        read = [name for name, _, _ in record.get("inputs", ()) if name in array_of]
        if record["type"] != "primitive" or not read:
            continue
        kind, new = record["name"], {}
        source = read[0]
        is_view = kind in VIEWS and not (kind in ("Flatten", "Reshape") and source in strided)
        for name, shape, dtype in record["outputs"]:
            array_of[name] = array_of[source] if is_view else name
            if is_view and (kind in ("Broadcast", "Transpose") or source in strided):
                strided.add(name)
            elif not is_view:
                size, is_square = prod(shape) * dtype.size, shape[-2:] == (TOKENS, TOKENS)
                new[name] = np.array([0, size] if is_square else [size, 0])
        yield Operation(kind, {array_of[name] for name in read}, new)


def _peak(records: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """The most bytes of arrays that depend on the input, without the results."""
    array_of: dict[str, str] = {}
    operations = list(_operations(records, array_of))
    (results,) = (record["outputs"] for record in records if record["type"] == "outputs")
    left_out = {array_of.get(name) for name, _, _ in results}
    sizes = {
        array: size
        for operation in operations
        for array, size in operation.new.items()
        if array not in left_out
    }
    last = {
        array: index
        for index, operation in enumerate(operations)
        for array in operation.read | operation.new.keys()
        if array in sizes
    }
    alive = most = np.zeros(2, int)
    for index, operation in enumerate(operations):
        new = [sizes[array] for array in operation.new if array in sizes]
        ended = [
            sizes[array]
            for array in operation.read | operation.new.keys()
            if last.get(array) == index
        ]
        before, alive = alive + sum(new), alive + sum(new) - sum(ended)
        in_place = operation.name not in PRODUCTS and any(
            (size == other).all() for size in new for other in ended
        )
        most = max(most, alive if in_place else before, key=np.sum)
    return int(most[0]), int(most[1])
