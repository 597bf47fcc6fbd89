"""Choice 4, anchor: the distance to the reference, by three estimators of KL(π, π_ref)."""

import mlx.core as mx

from grpo_engine.config.custom import Custom
from grpo_engine.maths import custom
from grpo_engine.maths.arrays import LIMIT


def k1(x: mx.array) -> mx.array:
    """k1 = x with x = log(π/π_ref): unbiased, either sign, zero gradient in expectation."""
    return x


def k2(x: mx.array) -> mx.array:
    """k2 = x²/2: biased, never negative; its expected gradient is that of KL."""
    return x * x / 2


def k3(x: mx.array) -> mx.array:
    """k3 = π_ref/π - log(π_ref/π) - 1 = e^-x + x - 1: unbiased, never negative.

    http://joschu.net/blog/kl-approx.html; GRPO (arXiv:2402.03300, eq. 4). Its gradient
    is not KL's: it is 1 - π_ref/π, at most 1 however far π is above the reference. x is clamped at
    -60, with gradient 0 below; larger x cannot overflow.
    """
    x = mx.maximum(x, -LIMIT)
    return mx.expm1(-x) + x


ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3}


def distance(
    policy: mx.array, reference: mx.array, estimator: str, level: str, values: custom.Values
) -> mx.array:
    """The estimate per token [B,T], or per completion [B,1] at level `sequence`.

    Both log-probabilities are 0 off the mask, so x = Σ_t log(π/π_ref) at level `sequence`. A
    function of the user gets x, and what it names of `values`.
    """
    x = policy - reference
    if level == "sequence":
        x = x.sum(axis=1, keepdims=True)
    if isinstance(estimator, Custom):
        return custom.call("anchor", estimator, {**values, "ref_log_ratio_BT": x}, x.shape)
    return ESTIMATORS[estimator](x)
