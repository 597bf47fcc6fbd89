"""The input arrays of a loss: float32, zeros off the mask, and exponents that cannot overflow.

Axes, here and in all of `grpo_engine.maths`: `P` prompts, `G` completions per prompt, `B = P·G`
completions, `T` completion tokens, `F` reward functions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from grpo_engine.errors import MathsError

LIMIT = 60.0  # e^60 = 1.1e26: its products and sums stay within float32
MAX_RATIO = 1.14200739e26  # e^60

LEARNED = ("new", "entropy", "values")


def on_mask(values: mx.array, mask: mx.array) -> mx.array:
    """x where the mask is 1, else a literal 0, in float32; removes NaN in padding. [B,T]"""
    return mx.where(mask, values.astype(mx.float32), 0.0)


def lengths(mask: mx.array) -> mx.array:
    """|o_i| = Σ_t mask, at least 1 so that an empty completion does not divide by 0. [B,1]"""
    return mx.maximum(mask.astype(mx.float32).sum(axis=1, keepdims=True), 1.0)


def of_shape(name: str, values: mx.array, *shapes: tuple[int, ...]) -> mx.array:
    """Return the array, or raise MathsError if it has none of the expected shapes."""
    if tuple(values.shape) not in shapes:
        legal = " or ".join(map(str, shapes))
        raise MathsError(f"{name} must have shape {legal}, got {tuple(values.shape)}")
    return values


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The arrays of a micro-batch, all [B,T]; only new, entropy and values have a gradient."""

    new: mx.array
    old: mx.array
    ref: mx.array | None
    sampler: mx.array | None
    advantage: mx.array
    mask: mx.array
    per_row: bool
    entropy: mx.array | None
    values: mx.array | None
    old_values: mx.array | None
    returns: mx.array | None
    extra: Mapping[str, Any] = field(default_factory=dict)  # only for functions of users


def batch_of(
    new: mx.array,
    old: mx.array | None,
    advantages: mx.array,
    mask: mx.array,
    extra: Mapping[str, Any] | None = None,
    **optional: mx.array | None,
) -> Batch:
    """Check shapes, [B,T] (advantages [B] or [B,T]), and detach the constants.

    `old=None` means stop_gradient(new), for the first update after sampling: every ratio is 1.
    """
    shape = tuple(of_shape("mask", mask, tuple(new.shape)).shape)
    of_shape("advantages", advantages, shape[:1], shape)
    per_token = mx.broadcast_to(advantages.reshape(shape[0], -1), shape)
    checked: dict[str, Any] = dict.fromkeys(optional)
    arrays = {"new": new, "old": new if old is None else old, "advantage": per_token, **optional}
    for name, values in arrays.items():
        if values is not None:
            inside = on_mask(of_shape(name, values, shape), mask > 0)
            checked[name] = inside if name in LEARNED else mx.stop_gradient(inside)
    return Batch(mask=mask > 0, per_row=advantages.ndim == 1, extra=extra or {}, **checked)
