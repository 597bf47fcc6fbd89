"""Question 4: how far from the reference policy? Three estimates of KL(π, π_ref)."""

import mlx.core as mx

from grpo_engine.maths.arrays import LIMIT


def k1(x: mx.array) -> mx.array:
    """k1 = x with x = log(π/π_ref): unbiased, of either sign, and no gradient in expectation."""
    return x


def k2(x: mx.array) -> mx.array:
    """k2 = x²/2: biased, never negative; its gradient is that of KL."""
    return x * x / 2


def k3(x: mx.array) -> mx.array:
    """k3 = π_ref/π - log(π_ref/π) - 1 = e^-x + x - 1: unbiased, never negative.

    http://joschu.net/blog/kl-approx.html; GRPO (arXiv:2402.03300, eq. 4). Its gradient is not KL's:
    it is 1 - π_ref/π, at most 1 where π is far above the reference. Below -60 x is clamped, with
    gradient 0; above it nothing can overflow.
    """
    near = mx.maximum(x, -LIMIT)
    return mx.expm1(-near) + near


ESTIMATES = {"k1": k1, "k2": k2, "k3": k3}


def distance(policy: mx.array, reference: mx.array, kind: str, level: str) -> mx.array:
    """The estimate of each token [B,T], or at level `sequence` of the whole completion [B,1].

    Both log-probabilities are 0 off the mask, so that x = Σ_t log(π/π_ref) there.
    """
    x = policy - reference
    if level == "sequence":
        x = x.sum(axis=1, keepdims=True)
    return ESTIMATES[kind](x)


def reward_penalty(
    old: mx.array, reference: mx.array, kind: str, level: str, beta: float
) -> mx.array:
    """β·k(π_old, π_ref) as a constant that is taken from the reward: [B,T], or [B,1] as above.

    PPO takes it token by token; the other signals sum it over the completion (RLOO).
    """
    return mx.stop_gradient(beta * distance(old, reference, kind, level))
