"""Choice 3, trust: when the push stops. Each rule gives an objective, bounds, and the active one.

Ratio r, advantage A and log π are [B,T].
"""

from typing import NamedTuple

import mlx.core as mx

from grpo_engine.config.recipes import Recipe
from grpo_engine.maths.arrays import FARTHEST

FREE, AT_LOW, AT_HIGH, AT_CEILING = 0, -1, 1, 2


class Push(NamedTuple):
    """The objective of each token, and the ratios at which its push stops."""

    objective: mx.array  # maximised
    low: mx.array  # ratio below which a push down stops, [B,T] or []
    high: mx.array  # ratio above which a push up stops, [B,T] or []
    side: mx.array  # FREE, AT_LOW, AT_HIGH or AT_CEILING: the active bound
    gate: mx.array | None = None  # what weighs the gradient, for vespo


def unbounded(objective: mx.array) -> Push:
    """An objective whose push never stops: only the clamp of log-ratios bounds the ratio."""
    side = mx.zeros(objective.shape, mx.int32)
    return Push(objective, mx.array(1 / FARTHEST), mx.array(FARTHEST), side)


def free(ratio: mx.array, advantage: mx.array) -> Push:
    """J = r·A: nothing stops the push."""
    return unbounded(ratio * advantage)


def score(logprob: mx.array, advantage: mx.array) -> Push:
    """J = A·log π: the gradient of REINFORCE, for ratio none."""
    return unbounded(advantage * logprob)


def clip(
    ratio: mx.array,
    advantage: mx.array,
    low: mx.array | float,
    high: mx.array | float,
    ceiling: float | None = None,
) -> Push:
    """J = min(r·A, clip(r, low, high)·A), low = 1-ε_low and high = 1+ε_high.

    PPO (arXiv:1707.06347, eq. 7); ε_high > ε_low is DAPO's clip-higher (arXiv:2503.14476). With a
    ceiling δ: min(min(r, δ)·A, ...), which bounds the push down too (arXiv:2505.07291).
    """
    raw = ratio if ceiling is None else mx.minimum(ratio, ceiling)
    objective = mx.minimum(raw * advantage, mx.clip(ratio, low, high) * advantage)
    side = mx.where((raw < low) & (advantage < 0), AT_LOW, FREE)
    side = mx.where((raw > high) & (advantage > 0), AT_HIGH, side)
    stopped = (ratio > raw) & (side == FREE) & (advantage != 0)
    return Push(objective, mx.array(low), mx.array(high), mx.where(stopped, AT_CEILING, side))


def cispo(ratio: mx.array, advantage: mx.array, logprob: mx.array, cap: float) -> Push:
    """J = sg(min(r, cap))·A·log π: the weight is bounded, the push never stops.

    CISPO (arXiv:2506.13585, eq. 4); sg is stop_gradient.
    """
    weight = mx.stop_gradient(mx.minimum(ratio, cap))
    side = mx.where(ratio > cap, AT_HIGH, FREE)
    return Push(weight * advantage * logprob, mx.array(1 / FARTHEST), mx.array(cap), side)


def sapo(ratio: mx.array, advantage: mx.array, tau_pos: float, tau_neg: float) -> Push:
    """J = 4/τ · sigmoid(τ(r - 1)) · A with τ = τ_pos for A > 0, else τ_neg: a soft gate.

    SAPO (arXiv:2511.20347). At r = 1 the gradient with respect to r is A, as without the gate.
    """
    tau = mx.where(advantage > 0, tau_pos, tau_neg)
    gate = 4 / tau * mx.sigmoid(tau * (ratio - 1))
    return unbounded(gate * advantage)


def vespo(log_weight: mx.array, advantage: mx.array, logprob: mx.array, recipe: Recipe) -> Push:
    """J = sg(φ(W))·A·log π with φ(W) = e^λ·W^k·e^(-λW), 1 at W = 1: a soft gate on whole answers.

    VESPO (arXiv:2602.10693). log W [B,1] is that of `ratio.answer_weight`; k and λ depend on the
    sign of A, with A = 0 among the positive ones. A φ beyond float32 counts as 0, as in TRL.
    """
    k = mx.where(advantage >= 0, recipe.vespo_k_pos, recipe.vespo_k_neg)
    rate = mx.where(advantage >= 0, recipe.vespo_lambda_pos, recipe.vespo_lambda_neg)
    gate = mx.exp(rate + k * log_weight - rate * mx.exp(log_weight))
    gate = mx.stop_gradient(mx.where(mx.isfinite(gate), gate, 0.0))
    return unbounded(gate * advantage * logprob)._replace(gate=gate)


def push(recipe: Recipe, ratio: mx.array, advantage: mx.array, logprob: mx.array) -> Push:
    """Apply the recipe's rule; `vespo` and `target` read more than one token's ratio."""
    if recipe.trust == "clip":
        low, high = 1 - recipe.clip_low, 1 + recipe.clip_high
        return clip(ratio, advantage, low, high, recipe.delta)
    if recipe.trust == "cispo":
        return cispo(ratio, advantage, logprob, recipe.cispo_cap)
    if recipe.trust == "sapo":
        return sapo(ratio, advantage, recipe.sapo_tau_pos, recipe.sapo_tau_neg)
    return score(logprob, advantage) if recipe.ratio == "none" else free(ratio, advantage)
