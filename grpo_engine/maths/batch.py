"""The input arrays of a loss, checked once: float32, zeros off the mask, constants detached."""

from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from grpo_engine.maths.arrays import of_shape, on_mask

LEARNED = ("new", "entropy", "values")


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


def batch_of(
    new: mx.array,
    old: mx.array | None,
    advantages: mx.array,
    mask: mx.array,
    **others: mx.array | None,
) -> Batch:
    """Check shapes, [B,T] (advantages [B] or [B,T]), and detach the constants.

    `old=None` means stop_gradient(new), for the first update after sampling: every ratio is 1.
    """
    shape = tuple(of_shape("mask", mask, tuple(new.shape)).shape)
    of_shape("advantages", advantages, shape[:1], shape)
    per_token = mx.broadcast_to(advantages.reshape(shape[0], -1), shape)
    read: dict[str, Any] = dict.fromkeys(others)
    given = {"new": new, "old": new if old is None else old, "advantage": per_token, **others}
    for name, values in given.items():
        if values is not None:
            inside = on_mask(of_shape(name, values, shape), mask > 0)
            read[name] = inside if name in LEARNED else mx.stop_gradient(inside)
    return Batch(mask=mask > 0, per_row=advantages.ndim == 1, **read)
