"""Splits a causal model: the trunk computes hidden states, the head logits."""

import copy
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from grpo_engine.platform.faults import raise_fault
from grpo_engine.policy.trees import flatten

TRUNKS = ("model", "backbone", "transformer")
LAYERS = ("layers", "h", "blocks")
# Raised where a faster way to compute does not know a kind of model.
UNKNOWN = (TypeError, ValueError, AttributeError, RuntimeError, LookupError, AssertionError)
TOLERANCE = {"float32": 1e-4, "bfloat16": 6e-2, "float16": 1e-2}
"""Largest difference of two ways to compute, as a part of the largest number."""


class _Precomputed:
    """Replaces the trunk and returns precomputed hidden states."""

    def __init__(self, trunk: nn.Module) -> None:
        self._trunk = trunk
        self.hidden: mx.array | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> mx.array:  # noqa: ARG002 - a layer's
        assert self.hidden is not None
        return self.hidden

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trunk, name)


class Structure:
    """Trunk and head of a model; the head runs the model's own code after its trunk.

    So logit scales, soft caps and tied embeddings are applied as the model does. Create a new one
    after replacing modules of the model.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.owner, self.trunk_name = _find_trunk(model)
        self.trunk: nn.Module = self.owner[self.trunk_name]
        self._precomputed = _Precomputed(self.trunk)

    def hidden(self, ids: mx.array, cache: list[Any] | None = None) -> mx.array:
        """Hidden states after the last norm, [B, L] -> [B, L, D]."""
        states: mx.array = self.trunk(ids, cache=cache)
        return states

    def logits(self, hidden: mx.array) -> mx.array:
        """Logits of hidden states, [N, D] -> [N, V]."""
        head = copy.copy(self.owner)  # A head may be a bare array, so it is copied at each call.
        head[self.trunk_name] = self._precomputed
        self._precomputed.hidden = hidden[None]
        try:
            out: mx.array = head(mx.zeros((1, hidden.shape[0]), dtype=mx.int32))
        finally:
            self._precomputed.hidden = None
        return out[0]

    def outer(self) -> dict[str, mx.array]:
        """Trainable weights outside the layers by name: embeddings, last norm, head."""
        flat = flatten(self.owner.trainable_parameters())
        return {name: value for name, value in flat.items() if not {*LAYERS} & {*name.split(".")}}


def _find_trunk(model: nn.Module) -> tuple[nn.Module, str]:
    for owner in filter(None, (model, model.get("language_model"))):
        for name in TRUNKS:
            if any(layers in owner.get(name, ()) for layers in LAYERS):
                return owner, name
    raise LookupError("the model has no trunk that could be run without its head")


def structure(model: nn.Module) -> Structure | None:
    """Trunk and head, not yet compared with the model; None if it has no such parts."""
    try:
        parts = Structure(model)
        parts.hidden(mx.zeros((1, 2), mx.int32))  # phixtral's trunk needs the mask of its head
    except UNKNOWN:
        return None
    return parts


def split_model(
    model: nn.Module, probe: mx.array, expected: mx.array, tolerance: float
) -> Structure | None:
    """Split the model; None if trunk and head do not give its logits of the probe."""
    try:
        parts = Structure(model)
        hidden = parts.hidden(probe)
        logits = parts.logits(hidden.reshape(-1, hidden.shape[-1])).reshape(*probe.shape, -1)
        return parts if agrees(logits, expected, tolerance) else None
    except UNKNOWN as error:
        raise_fault(error)
        return None  # an unknown kind of model: the whole model computes logits at every position


def agrees(values: mx.array, expected: mx.array, tolerance: float) -> bool:
    """Whether two arrays differ by at most `tolerance` of the largest expected value."""
    values, expected = values.astype(mx.float32), expected.astype(mx.float32)
    if values.shape != expected.shape:
        return False
    scale = mx.maximum(mx.abs(expected).max(), 1e-6)
    return bool((mx.abs(values - expected).max() <= tolerance * scale).item())
