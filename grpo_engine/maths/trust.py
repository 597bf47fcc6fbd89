"""Choice 3, trust: when the push stops. Each rule gives an objective, bounds, and the active one.

Ratio r, advantage A and log π are [B,T]. Rule `target` pushes each token towards a probability:
completions of a group form a prefix tree, and each distinct token after a shared prefix gets one
target, so that siblings with the same prefix are never pushed against each other.
"""

from typing import NamedTuple

import mlx.core as mx

from grpo_engine.config.recipes import Recipe
from grpo_engine.errors import MathsError
from grpo_engine.maths.arrays import LIMIT, MAX_RATIO, Batch
from grpo_engine.maths.ratio import answer_weight

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
    return Push(objective, mx.array(1 / MAX_RATIO), mx.array(MAX_RATIO), side)


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
    return Push(weight * advantage * logprob, mx.array(1 / MAX_RATIO), mx.array(cap), side)


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


class Targets(NamedTuple):
    """The target of each token [B,T]; computed once per update from whole groups."""

    sign: mx.array  # +1 pushed up, -1 pushed down, 0 left alone
    probability: mx.array  # the target t
    low: mx.array  # ratio at which a push down stops: p_old
    high: mx.array  # ratio at which a push up stops: t/p_old


def targets_of(
    old: mx.array, signs: mx.array, mask: mx.array, token_ids: mx.array, group_ids: mx.array
) -> Targets:
    """Targets of all completions of whole groups. signs [B] or [B,T], the rest [B,T].

    Bad tokens: t = p_old². Good tokens: t = p + s·(√p - p), s from `step_sizes_of`. A token's sign
    is the sign of the sum of signs over the completions that share it and its prefix. Tokens off
    the mask, such as forced ones, are not pushed, but the prefix of later tokens contains them.
    """
    rows, columns = mask.shape
    signs = mx.broadcast_to(signs.reshape(rows, -1), (rows, columns))
    logp = mx.clip(mx.stop_gradient(old).astype(mx.float32), -LIMIT, 0.0)
    shared = group_ids[:, None] == group_ids[None, :]  # [B,B]: the same prefix so far
    tree_signs, step_sizes = [], []
    for t in range(columns):
        inside = mask[:, t]
        together = shared & inside[:, None] & inside[None, :]
        alike = token_ids[:, t][:, None] == token_ids[:, t][None, :]
        same, shared = together & alike, shared & alike
        sign = mx.sign(mx.where(same, signs[:, t][None, :], 0.0).sum(axis=1))
        tree_signs.append(sign)
        step_sizes.append(step_sizes_of(mx.exp(logp[:, t]), sign, together, same))
    sign, step_size = mx.stack(tree_signs, axis=1), mx.stack(step_sizes, axis=1)
    low = mx.exp(logp)
    high = mx.where(sign > 0, 1 + step_size * (mx.exp(-logp / 2) - 1), low)
    return Targets(sign, mx.where(sign == 0, low, low * high), low, high)


def step_sizes_of(p: mx.array, sign: mx.array, together: mx.array, same: mx.array) -> mx.array:
    """s = min(1, (1 - Σ bad p² - Σ good p)/Σ good (√p - p)) over the distinct tokens. [B]

    together[i,j]: i and j have the same prefix; same[i,j]: the same token after it. Three good and
    one bad token at 1/4 each: s = (1 - 1/16 - 3/4)/(3/4) = .25, and t = .3125 for a good one.
    """
    first = mx.argmax(same, axis=1) == mx.arange(p.shape[0])  # one completion per distinct token
    good, bad = first & (sign > 0), first & (sign < 0)

    def over(chosen: mx.array, values: mx.array) -> mx.array:
        return mx.where(together & chosen[None, :], values[None, :], 0.0).sum(axis=1)

    remaining = mx.maximum(1 - over(bad, p * p) - over(good, p), 0.0)
    reach = over(good, mx.sqrt(p) - p)
    return mx.where(reach > remaining, remaining / reach, 1.0)


def push(
    batch: Batch, recipe: Recipe, ratio: mx.array, importance: mx.array, targets: Targets | None
) -> Push:
    """J and where it has stopped, by the recipe's rule."""
    advantage, logprob = batch.advantage, batch.new
    if targets is not None:
        return clip(ratio, targets.sign, targets.low, targets.high)
    match recipe.trust:
        case "clip":
            low, high = 1 - recipe.clip_low, 1 + recipe.clip_high
            return clip(ratio, advantage, low, high, recipe.delta)
        case "cispo":
            return cispo(ratio, advantage, logprob, recipe.cispo_cap)
        case "sapo":
            return sapo(ratio, advantage, recipe.sapo_tau_pos, recipe.sapo_tau_neg)
        case "vespo":
            log_weight = answer_weight(logprob - batch.old, importance, recipe)
            return vespo(log_weight, advantage, logprob, recipe)
        case "none":  # J = r·A, or A·log π without a ratio: the gradient of REINFORCE
            return unbounded(advantage * logprob if recipe.ratio == "none" else ratio * advantage)
    raise MathsError(f"trust={recipe.trust} has no rule in maths/trust.py")
