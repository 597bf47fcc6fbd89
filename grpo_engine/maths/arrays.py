"""Helpers for the formulas: float32, zeros off the mask, and exponents that cannot overflow.

Axes, here and in all of `grpo_engine.maths`: `P` prompts, `G` completions per prompt, `B = P·G`
completions, `T` completion tokens, `F` reward functions.
"""

import mlx.core as mx

from grpo_engine.errors import MathsError

LIMIT = 60.0  # e^60 = 1.1e26: its products and sums stay within float32
FARTHEST = 1.14200739e26  # e^60, the largest possible ratio


def clamp(log_ratio: mx.array) -> mx.array:
    """clip(x, -60, 60), with zero gradient outside."""
    return mx.clip(log_ratio, -LIMIT, LIMIT)


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
