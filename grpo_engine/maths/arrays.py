"""The input arrays of a loss: float32, zeros off the mask, and exponents that cannot overflow."""

from collections.abc import Mapping
from dataclasses import field
from typing import Any

import mlx.core as mx

from grpo_engine.errors import MathsError
from grpo_engine.frozen import frozen

LIMIT = 60.0  # e^60 = 1.1e26: its products and sums stay within float32
MAX_RATIO = 1.14200739e26  # e^60

LEARNED = ("new", "entropy", "values")


def on_mask(values_BT: mx.array, mask_BT: mx.array) -> mx.array:
    """x where the mask is 1, else a literal 0, in float32; removes NaN in padding. [B,T]"""
    return mx.where(mask_BT, values_BT.astype(mx.float32), 0.0)


def lengths(mask_BT: mx.array) -> mx.array:
    """|o_i| = Σ_t mask, at least 1 so that an empty completion does not divide by 0. [B,1]"""
    return mx.maximum(mask_BT.astype(mx.float32).sum(axis=1, keepdims=True), 1.0)


def of_shape(name: str, array: mx.array, *shapes: tuple[int, ...]) -> mx.array:
    """Return the array, or raise MathsError if it has none of the expected shapes."""
    if tuple(array.shape) not in shapes:
        legal = " or ".join(map(str, shapes))
        raise MathsError(f"{name} must have shape {legal}, got {tuple(array.shape)}")
    return array


@frozen
class Batch:
    """The arrays of a micro-batch; only new, entropy and values have a gradient."""

    new_BT: mx.array
    old_BT: mx.array
    ref_BT: mx.array | None
    sampler_BT: mx.array | None
    advantages_BT: mx.array
    mask_BT: mx.array
    per_row: bool  # a completion has one advantage
    entropy_BT: mx.array | None
    values_BT: mx.array | None
    old_values_BT: mx.array | None
    returns_BT: mx.array | None
    extra: Mapping[str, Any] = field(default_factory=dict)  # read by functions of users alone


def batch_of(
    new_BT: mx.array,
    old_BT: mx.array | None,
    advantages_Bt: mx.array,
    mask_BT: mx.array,
    extra: Mapping[str, Any] | None = None,
    **optional: mx.array | None,
) -> Batch:
    """Check shapes, [B,T] (advantages [B] or [B,T]), and detach the constants.

    `old_BT=None` means stop_gradient(new), for the first update after sampling: every ratio is 1.
    """
    shape = tuple(of_shape("mask", mask_BT, tuple(new_BT.shape)).shape)
    of_shape("advantages", advantages_Bt, shape[:1], shape)
    arrays = {
        "new": new_BT,
        "old": new_BT if old_BT is None else old_BT,
        "advantages": mx.broadcast_to(advantages_Bt.reshape(shape[0], -1), shape),
        **optional,
    }
    checked: dict[str, Any] = {}
    for name, array_BT in arrays.items():
        checked[f"{name}_BT"] = None
        if array_BT is not None:
            masked_BT = on_mask(of_shape(name, array_BT, shape), mask_BT > 0)
            checked[f"{name}_BT"] = masked_BT if name in LEARNED else mx.stop_gradient(masked_BT)
    return Batch(mask_BT=mask_BT > 0, per_row=advantages_Bt.ndim == 1, extra=extra or {}, **checked)
