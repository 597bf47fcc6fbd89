"""Choice 3, trust: when the push stops. Each rule gives an objective, bounds, and the active one.

Rule `target` pushes each token towards a probability: completions of a group form a prefix tree,
and each distinct token after a shared prefix gets one target, so that siblings with the same prefix
are never pushed against each other.
"""

from typing import NamedTuple

import mlx.core as mx

from grpo_engine.config.recipes import Recipe
from grpo_engine.errors import MathsError
from grpo_engine.maths.arrays import LIMIT, MAX_RATIO, Batch
from grpo_engine.maths.ratio import completion_log_weight

FREE, AT_LOW, AT_HIGH, AT_CEILING = 0, -1, 1, 2


class Push(NamedTuple):
    """The objective of each token, and the ratios at which its push stops."""

    objective_BT: mx.array  # maximised
    low_BT: mx.array  # ratio below which a push down stops
    high_BT: mx.array  # ratio above which a push up stops
    side_BT: mx.array  # the active bound: FREE, AT_LOW, AT_HIGH or AT_CEILING
    gate_BT: mx.array | None = None  # VESPO's weight of the gradient


def unbounded(objective_BT: mx.array) -> Push:
    """An objective whose push never stops: only the clamp of log-ratios bounds the ratio."""
    side_BT = mx.zeros(objective_BT.shape, mx.int32)
    return Push(objective_BT, mx.array(1 / MAX_RATIO), mx.array(MAX_RATIO), side_BT)


def clip(
    ratio_BT: mx.array,
    advantages_BT: mx.array,
    low_BT: mx.array | float,
    high_BT: mx.array | float,
    ceiling: float | None = None,
) -> Push:
    """J = min(r·A, clip(r, low, high)·A), low = 1-ε_low and high = 1+ε_high.

    PPO (arXiv:1707.06347, eq. 7); ε_high > ε_low is DAPO's clip-higher (arXiv:2503.14476). With a
    ceiling δ: min(min(r, δ)·A, ...), which bounds the push down too (arXiv:2505.07291).
    """
    raw_BT = ratio_BT if ceiling is None else mx.minimum(ratio_BT, ceiling)
    clipped_BT = mx.clip(ratio_BT, low_BT, high_BT)
    objective_BT = mx.minimum(raw_BT * advantages_BT, clipped_BT * advantages_BT)
    side_BT = mx.where((raw_BT < low_BT) & (advantages_BT < 0), AT_LOW, FREE)
    side_BT = mx.where((raw_BT > high_BT) & (advantages_BT > 0), AT_HIGH, side_BT)
    at_ceiling_BT = (ratio_BT > raw_BT) & (side_BT == FREE) & (advantages_BT != 0)
    side_BT = mx.where(at_ceiling_BT, AT_CEILING, side_BT)
    return Push(objective_BT, mx.array(low_BT), mx.array(high_BT), side_BT)


def cispo(ratio_BT: mx.array, advantages_BT: mx.array, logprobs_BT: mx.array, cap: float) -> Push:
    """J = sg(min(r, cap))·A·log π: the weight is bounded, the push never stops.

    CISPO (arXiv:2506.13585, eq. 4); sg is stop_gradient.
    """
    weight_BT = mx.stop_gradient(mx.minimum(ratio_BT, cap))
    side_BT = mx.where(ratio_BT > cap, AT_HIGH, FREE)
    objective_BT = weight_BT * advantages_BT * logprobs_BT
    return Push(objective_BT, mx.array(1 / MAX_RATIO), mx.array(cap), side_BT)


def sapo(ratio_BT: mx.array, advantages_BT: mx.array, tau_pos: float, tau_neg: float) -> Push:
    """J = 4/τ · sigmoid(τ(r - 1)) · A with τ = τ_pos for A > 0, else τ_neg: a soft gate.

    SAPO (arXiv:2511.20347). At r = 1 the gradient with respect to r is A, as without the gate.
    """
    tau_BT = mx.where(advantages_BT > 0, tau_pos, tau_neg)
    gate_BT = 4 / tau_BT * mx.sigmoid(tau_BT * (ratio_BT - 1))
    return unbounded(gate_BT * advantages_BT)


def vespo(
    log_weight_B1: mx.array, advantages_BT: mx.array, logprobs_BT: mx.array, recipe: Recipe
) -> Push:
    """J = sg(φ(W))·A·log π, φ(W) = e^λ·W^k·e^(-λW), 1 at W = 1: a soft gate on whole completions.

    VESPO (arXiv:2602.10693). log W is that of `ratio.completion_log_weight`; k and λ depend on the
    sign of A, with A = 0 among the positive ones. A φ beyond float32 counts as 0, as in TRL.
    """
    k_BT = mx.where(advantages_BT >= 0, recipe.vespo_k_pos, recipe.vespo_k_neg)
    rate_BT = mx.where(advantages_BT >= 0, recipe.vespo_lambda_pos, recipe.vespo_lambda_neg)
    gate_BT = mx.exp(rate_BT + k_BT * log_weight_B1 - rate_BT * mx.exp(log_weight_B1))
    gate_BT = mx.stop_gradient(mx.where(mx.isfinite(gate_BT), gate_BT, 0.0))
    return unbounded(gate_BT * advantages_BT * logprobs_BT)._replace(gate_BT=gate_BT)


class Targets(NamedTuple):
    """The target of each token; computed once per update from whole groups."""

    sign_BT: mx.array  # +1 pushed up, -1 pushed down, 0 left alone
    probability_BT: mx.array  # the target t
    low_BT: mx.array  # ratio at which a push down stops: p_old
    high_BT: mx.array  # ratio at which a push up stops: t/p_old


def targets_of(
    old_BT: mx.array,
    signs_Bt: mx.array,
    mask_BT: mx.array,
    token_ids_BT: mx.array,
    group_ids_B: mx.array,
) -> Targets:
    """Targets of all completions of whole groups.

    Bad tokens: t = p_old². Good tokens: t = p + s·(√p - p), s from `step_sizes_of`. A token's sign
    is the sign of the sum of signs over the completions that share it and its prefix. Tokens off
    the mask, such as forced ones, are not pushed, but the prefix of later tokens contains them.
    """
    rows, columns = mask_BT.shape
    signs_BT = mx.broadcast_to(signs_Bt.reshape(rows, -1), (rows, columns))
    logp_BT = mx.clip(mx.stop_gradient(old_BT).astype(mx.float32), -LIMIT, 0.0)
    prefix_BB = group_ids_B[:, None] == group_ids_B[None, :]  # the same prefix so far
    tree_signs, step_sizes = [], []
    for t in range(columns):
        mask_B, ids_B = mask_BT[:, t], token_ids_BT[:, t]
        together_BB = prefix_BB & mask_B[:, None] & mask_B[None, :]
        same_id_BB = ids_B[:, None] == ids_B[None, :]
        same_BB, prefix_BB = together_BB & same_id_BB, prefix_BB & same_id_BB
        sign_B = mx.sign(mx.where(same_BB, signs_BT[:, t][None, :], 0.0).sum(axis=1))
        tree_signs.append(sign_B)
        step_sizes.append(step_sizes_of(mx.exp(logp_BT[:, t]), sign_B, together_BB, same_BB))
    sign_BT, step_size_BT = mx.stack(tree_signs, axis=1), mx.stack(step_sizes, axis=1)
    low_BT = mx.exp(logp_BT)
    high_BT = mx.where(sign_BT > 0, 1 + step_size_BT * (mx.exp(-logp_BT / 2) - 1), low_BT)
    return Targets(sign_BT, mx.where(sign_BT == 0, low_BT, low_BT * high_BT), low_BT, high_BT)


def step_sizes_of(
    p_B: mx.array, sign_B: mx.array, together_BB: mx.array, same_BB: mx.array
) -> mx.array:
    """s = min(1, (1 - Σ bad p² - Σ good p)/Σ good (√p - p)) over the distinct tokens. [B]

    together[i,j]: i and j have the same prefix; same[i,j]: the same token after it. Three good and
    one bad token at 1/4 each: s = (1 - 1/16 - 3/4)/(3/4) = .25, and t = .3125 for a good one.
    """
    distinct_B = mx.argmax(same_BB, axis=1) == mx.arange(p_B.shape[0])  # one row for each token
    good_B, bad_B = distinct_B & (sign_B > 0), distinct_B & (sign_B < 0)

    def total(rows_B: mx.array, values_B: mx.array) -> mx.array:
        return mx.where(together_BB & rows_B[None, :], values_B[None, :], 0.0).sum(axis=1)

    remaining_B = mx.maximum(1 - total(bad_B, p_B * p_B) - total(good_B, p_B), 0.0)
    reach_B = total(good_B, mx.sqrt(p_B) - p_B)
    return mx.where(reach_B > remaining_B, remaining_B / reach_B, 1.0)


def push(
    batch: Batch,
    recipe: Recipe,
    ratio_BT: mx.array,
    importance_BT: mx.array,
    targets: Targets | None,
) -> Push:
    """J and where it has stopped, by the recipe's rule."""
    advantages_BT, logprobs_BT = batch.advantages_BT, batch.new_BT
    if targets is not None:
        return clip(ratio_BT, targets.sign_BT, targets.low_BT, targets.high_BT)
    match recipe.trust:
        case "clip":
            low, high = 1 - recipe.clip_low, 1 + recipe.clip_high
            return clip(ratio_BT, advantages_BT, low, high, recipe.delta)
        case "cispo":
            return cispo(ratio_BT, advantages_BT, logprobs_BT, recipe.cispo_cap)
        case "sapo":
            return sapo(ratio_BT, advantages_BT, recipe.sapo_tau_pos, recipe.sapo_tau_neg)
        case "vespo":
            log_ratio_BT = logprobs_BT - batch.old_BT
            log_weight_B1 = completion_log_weight(log_ratio_BT, importance_BT, recipe)
            return vespo(log_weight_B1, advantages_BT, logprobs_BT, recipe)
        case "none" if recipe.ratio == "none":  # the gradient of REINFORCE
            return unbounded(advantages_BT * logprobs_BT)
        case "none":
            return unbounded(ratio_BT * advantages_BT)
    raise MathsError(f"trust={recipe.trust} has no rule in maths/trust.py")
