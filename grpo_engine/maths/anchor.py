"""Choice 4, anchor: the distance to the reference, by three estimators of KL(π, π_ref)."""

import mlx.core as mx

from grpo_engine.config.custom import Custom
from grpo_engine.maths import custom
from grpo_engine.maths.arrays import LIMIT


def k1(x_BT: mx.array) -> mx.array:
    """k1 = x with x = log(π/π_ref): unbiased, either sign, zero gradient in expectation."""
    return x_BT


def k2(x_BT: mx.array) -> mx.array:
    """k2 = x²/2: biased, never negative; its expected gradient is that of KL."""
    return x_BT * x_BT / 2


def k3(x_BT: mx.array) -> mx.array:
    """k3 = π_ref/π - log(π_ref/π) - 1 = e^-x + x - 1: unbiased, never negative.

    http://joschu.net/blog/kl-approx.html; GRPO (arXiv:2402.03300, eq. 4). Its gradient
    is not KL's: it is 1 - π_ref/π, at most 1 however far π is above the reference. x is clamped at
    -60, with gradient 0 below; larger x cannot overflow.
    """
    x_BT = mx.maximum(x_BT, -LIMIT)
    return mx.expm1(-x_BT) + x_BT


ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3}


def distance(
    policy_BT: mx.array, ref_BT: mx.array, estimator: str, level: str, values: custom.Values
) -> mx.array:
    """The estimate per token [B,T], or per completion [B,1] at level `sequence`.

    Both log-probabilities are 0 off the mask, so x = Σ_t log(π/π_ref) at level `sequence`. A
    user's function gets x, and whichever of `values` it names.
    """
    x_BT = policy_BT - ref_BT
    if level == "sequence":
        x_BT = x_BT.sum(axis=1, keepdims=True)
    if isinstance(estimator, Custom):
        return custom.call("anchor", estimator, {**values, "ref_log_ratio_BT": x_BT}, x_BT.shape)
    return ESTIMATORS[estimator](x_BT)
