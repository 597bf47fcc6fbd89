"""Choice 2, ratio: old data is re-weighted by the policy's ratio to the one that sampled."""

import math

import mlx.core as mx

from grpo_engine.config.recipes import Recipe
from grpo_engine.maths.arrays import LIMIT, lengths

MIN_LOG, MAX_LOG = math.log(1e-8), 20.0  # bounds of VESPO's log W


def log_ratios(log_ratio_BT: mx.array, mask_BT: mx.array, level: str) -> mx.array:
    """log r before clamping, from x_t = log π(o_t) - log π_old(o_t), 0 off the mask.

    token          x_t               [B,T]  PPO (arXiv:1707.06347), GRPO (arXiv:2402.03300)
    sequence_mean  Σ_t x_t / |o|     [B,1]  GSPO (arXiv:2507.18071, eq. 7)
    sequence_sum   Σ_t x_t           [B,1]  the probability ratio of whole completions
    none           0                 [B,T]  no re-weighting: fresh samples
    """
    if level == "token":
        return log_ratio_BT
    total_B1 = log_ratio_BT.sum(axis=1, keepdims=True)
    if level == "sequence_mean":
        return total_B1 / lengths(mask_BT)
    return total_B1 if level == "sequence_sum" else mx.zeros_like(log_ratio_BT)


def ratios(log_ratio_BT: mx.array) -> mx.array:
    """r = exp(clip(log r, -60, 60)), with zero gradient outside."""
    return mx.exp(mx.clip(log_ratio_BT, -LIMIT, LIMIT))


def importance(log_ratio_BT: mx.array, mask_BT: mx.array, recipe: Recipe) -> mx.array:
    """w = π_old/π_sampler within [floor, cap], from x = log π_old - log π_sampler; constant. [B,T]

    token     w_t = exp(x_t)       truncate  clip(w, floor, cap)
    sequence  w   = exp(Σ_t x_t)   mask      w, and 0 where it is below floor or above cap

    Corrects for a sampler whose probabilities differ from the trainer's, as TRL does.
    """
    level, _, beyond = recipe.importance_mode.partition("_")
    level = "sequence_sum" if level == "sequence" else "token"
    w_BT = mx.broadcast_to(ratios(log_ratios(log_ratio_BT, mask_BT, level)), mask_BT.shape)
    low, high = recipe.importance_floor, recipe.importance_cap
    if beyond == "truncate":
        return mx.stop_gradient(mx.clip(w_BT, low, high))
    return mx.stop_gradient(mx.where((w_BT < low) | (w_BT > high), 0.0, w_BT))


def completion_log_weight(
    log_ratio_BT: mx.array, importance_BT: mx.array, recipe: Recipe
) -> mx.array:
    """log W = Σ_t log π/π_old + log of the importance weights, for VESPO. [B,1]

    Each log-ratio is held within ±20, each importance weight and W itself within 1e-8 and e^20, as
    in TRL: a token of weight 0 all but leaves its completion out.
    """
    log_w_B1 = mx.clip(log_ratio_BT, -MAX_LOG, MAX_LOG).sum(axis=1, keepdims=True)
    if recipe.importance_cap > 0:
        if recipe.has_sequence_importance:
            importance_BT = importance_BT[:, :1]
        log_importance_BT = mx.clip(mx.log(importance_BT), MIN_LOG, MAX_LOG)
        log_w_B1 = log_w_B1 + log_importance_BT.sum(axis=1, keepdims=True)
    return mx.clip(log_w_B1, MIN_LOG, MAX_LOG)


def near_sampler(
    new_BT: mx.array,
    sampler_BT: mx.array,
    advantages_BT: mx.array,
    mask_BT: mx.array,
    limit: float,
) -> mx.array:
    """[A ≥ 0 or Σ_t log(π_sampler/π)/|o| ≤ limit]: drop bad completions far off policy. [B,T]

    The off-policy sequence mask of DeepSeek-V3.2 (arXiv:2512.02556, eq. 9).
    """
    distance_B1 = (sampler_BT - new_BT).sum(axis=1, keepdims=True) / lengths(mask_BT)
    return (advantages_BT >= 0) | (distance_B1 <= limit)
