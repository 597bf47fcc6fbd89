"""Counts the arrays that a backward pass keeps, in the graph of a model, with or without weights.

A row of tokens is traced through the layers and back, with the arrays of all layers kept and with
each layer computed again; nothing is computed.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
import mlx_lm.models.gated_delta
import numpy as np

from grpo_engine.policy import checkpointing, gated_delta
from grpo_engine.policy.attention import plain
from grpo_engine.policy.structure import UNKNOWN
from grpo_engine.policy.trees import flatten

TOKENS = 127  # of the row: no other dimension of a model, and almost two chunks of 64
KEYS = 131  # of MLX's attention, which may run in chunks: its scores differ from others in shape
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


class Moment(NamedTuple):
    """Bytes of the arrays that are alive at once."""

    token: float  # per token
    score: float  # per query and key of MLX's attention
    pair: float = 0  # per pair of tokens, of attention that is not MLX's function


@dataclass(frozen=True, slots=True)
class Activations:
    """The arrays of a forward and backward pass, at the moments when they may take the most."""

    kept: list[Moment]
    recomputed: list[Moment]  # with each layer computed again in the backward pass
    keys: int  # numbers per token in the keys and values of all calls of MLX's attention
    scores: float  # bytes per query and key that are kept of all layers but the one in work
    section: float = 0  # bytes per token of a section of the gated delta rule
    known: bool = True  # False: the graph could not be traced


@dataclass(frozen=True, slots=True)
class _Calls:
    """Stand-ins for what has a gradient of its own, which cannot be exported, and their calls."""

    keys: list[int] = field(default_factory=list)
    scores: list[int] = field(default_factory=list)
    layers: list[tuple[Any, Any, Any]] = field(
        default_factory=list
    )  # calls of layers to recompute: function, inputs, outputs
    sections: list[list[mx.array]] = field(default_factory=list)

    def attend(self, q: mx.array, k: mx.array, v: mx.array, *, scale: float, **_: Any) -> mx.array:
        self.keys.append(k.shape[1] * (k.shape[3] + v.shape[3]))
        self.scores.append(q.shape[1] * q.dtype.size)
        k, v = (mx.pad(array, [(0, 0), (0, 0), (0, KEYS - TOKENS), (0, 0)]) for array in (k, v))
        return plain(q, k, v, scale=scale, mask="causal", stream=mx.cpu)

    def recurrence(self, state: mx.array, *arrays: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        self.sections.append([mx.zeros(array.shape) for array in (state, *arrays)])
        return state, _reading(arrays[2], state, *arrays), state[None]

    def checkpoint(self, run: Any) -> Any:
        def call(*inputs: Any) -> Any:
            outputs = run(*inputs)
            self.layers.append((run, inputs, outputs))
            return outputs

        return call


def trace(model: nn.Module, hidden: Any) -> Activations | None:
    """Trace `hidden`, a function of ids [1, L] that runs the layers of `model`, if it can be."""
    calls, ids = _Calls(), mx.zeros((1, TOKENS), mx.int32)

    def kept(ids: mx.array) -> list[mx.array]:
        _, gradients = nn.value_and_grad(model, lambda: hidden(ids).sum())()
        return list(flatten(gradients).values())

    def recomputed(ids: mx.array) -> list[mx.array]:
        calls.layers.clear()
        hidden(ids)
        outer, results = list[mx.array](), list[mx.array]()
        for run, inputs, outputs in reversed(calls.layers):
            output, *states = flatten(outputs).values()
            cotangents = [*(outer[:1] or [output]), *map(mx.zeros_like, states)]
            weights, outer, _ = checkpointing.gradients(run, inputs, cotangents)
            results += weights.values()
        return results

    def section(*arrays: mx.array) -> list[mx.array]:
        return mx.vjp(gated_delta._section, list(arrays), [arrays[0], arrays[3]])[1]

    training, types = model.training, [type(layer) for layer in model.layers]
    try:
        model.train()
        checkpointing.checkpoint_layers(model)
        with _stand_ins(calls):
            all_kept, keys = _moments(kept, ids), sum(calls.keys)
            can_recompute = len(calls.layers) >= len(model.layers)
            all_recomputed = _moments(recomputed, ids) if can_recompute else all_kept
        section_bytes = _moments(section, *calls.sections[0])[0].token if calls.sections else 0
    except UNKNOWN:  # dbrx reads numbers while its graph is built
        return None
    finally:
        model.train(training)
        for module, kind in zip(model.layers, types, strict=True):
            module.__class__ = kind
    # The backward pass of attention has two arrays of scores.
    other_scores = max(moment.score for moment in all_kept) - 2 * max(calls.scores, default=0)
    return Activations(all_kept, all_recomputed, keys, other_scores, section_bytes)


@contextmanager
def _stand_ins(calls: _Calls) -> Iterator[None]:
    replacements: list[tuple[Any, str, Any]] = [
        (mx.fast, "scaled_dot_product_attention", calls.attend),
        (checkpointing, "checkpoint", calls.checkpoint),
        (mx, "gather_mm", _gather_mm),
        (mx, "contiguous", lambda array: array),
        (nn, "softplus", lambda array: mx.logaddexp(array, 0)),
        (gated_delta, "_recurrence", calls.recurrence),
        (mlx_lm.models.gated_delta, "gated_delta_ops", gated_delta.gated_delta_chunks),
    ]
    originals = [getattr(owner, name) for owner, name, _ in replacements]
    try:
        for owner, name, function in replacements:
            setattr(owner, name, function)
        yield
    finally:
        for (owner, name, _), function in zip(replacements, originals, strict=True):
            setattr(owner, name, function)


def _gather_mm(a: mx.array, b: mx.array, *, rhs_indices: mx.array, **_: Any) -> mx.array:
    """A product with one matrix of several for each row, whose gradient cannot be exported."""
    rows = np.broadcast_shapes(a.shape[:-2], rhs_indices.shape)
    return _reading(a[..., :1] + mx.zeros((*rows, a.shape[-2], b.shape[-1]), a.dtype), a)


def _reading(output: mx.array, *inputs: mx.array) -> mx.array:
    """The output, with a gradient that reads all inputs."""
    ends = [(array * array[(0,) * array.ndim]).sum() for array in inputs]
    return mx.stop_gradient(output) + mx.stack(ends).sum().astype(output.dtype)


def _moments(function: Any, *inputs: mx.array) -> list[Moment]:
    """The moments when arrays that depend on the inputs take the most, without the results."""
    records: list[dict[str, Any]] = []
    mx.export_function(records.append, function, *inputs)
    operations = [record for record in records if record["type"] == "primitive"]
    (results,) = (record["outputs"] for record in records if record["type"] == "outputs")
    sizes, array_of = _sizes(operations, {name for name, _, _ in records[0]["inputs"]})
    for name, _, _ in results:
        sizes.pop(array_of.get(name, name), None)
    touched = [
        {array_of.get(name, name) for name, _, _ in operation["inputs"] + operation["outputs"]}
        & sizes.keys()
        for operation in operations
    ]
    last = {array: index for index, arrays in enumerate(touched) for array in arrays}
    alive = np.zeros(3, int)
    moments: list[Moment] = []
    for index, (operation, arrays) in enumerate(zip(operations, touched, strict=True)):
        new = [sizes[name] for name, _, _ in operation["outputs"] if name in sizes]
        ended = [sizes[array] for array in arrays if last[array] == index]
        before, alive = alive + sum(new), alive + sum(new) - sum(ended)
        in_place = operation["name"] not in PRODUCTS and any(
            (size == other).all() for size in new for other in ended
        )
        peak = (alive if in_place else before) / (TOKENS, TOKENS * KEYS, TOKENS**2)
        if not any((peak <= moment).all() for moment in moments):
            moments = [moment for moment in moments if (moment > peak).any()]
            moments.append(Moment(*peak.tolist()))
    return sorted(moments, reverse=True)


def _sizes(
    operations: Sequence[Mapping[str, Any]], depending: set[str]
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Bytes of each array, as in `Moment`, and the array behind each view."""
    sizes: dict[str, np.ndarray] = {}
    array_of: dict[str, str] = {}
    strided: set[str] = set()
    for operation in operations:
        kind, read = operation["name"], [name for name, _, _ in operation["inputs"]]
        is_view = kind in VIEWS and not (kind in ("Flatten", "Reshape") and read[0] in strided)
        for index, (name, shape, dtype) in enumerate(operation["outputs"]):
            sources = [read[index if kind == "Depends" else 0]] if is_view else read
            depends = not depending.isdisjoint(sources)
            if depends:
                depending.add(name)
            if is_view:
                array_of[name] = array_of.get(sources[0], sources[0])
                if kind in ("Broadcast", "Transpose") or sources[0] in strided:
                    strided.add(name)
            elif depends:
                column = {KEYS: 1, TOKENS: 2}.get(shape[-1], 0) if TOKENS in shape[-2:-1] else 0
                sizes[name] = np.eye(3, dtype=int)[column] * prod(shape) * dtype.size
    return sizes, array_of
