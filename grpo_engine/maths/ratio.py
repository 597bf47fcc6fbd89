"""Choice 2, ratio: old data is re-weighted by the policy's ratio to the one that sampled."""

import math

import mlx.core as mx

from grpo_engine.config.recipes import Recipe
from grpo_engine.maths.arrays import LIMIT, lengths

MIN_LOG, MAX_LOG = math.log(1e-8), 20.0  # of VESPO's weight W


def log_ratios(difference: mx.array, mask: mx.array, level: str) -> mx.array:
    """log r before clamping, from x_t = log π(o_t) - log π_old(o_t), 0 off the mask.

    token          x_t               [B,T]  PPO (arXiv:1707.06347), GRPO (arXiv:2402.03300)
    sequence_mean  Σ_t x_t / |o|     [B,1]  GSPO (arXiv:2507.18071, eq. 7)
    sequence_sum   Σ_t x_t           [B,1]  the probability ratio of whole completions
    none           0                 [B,T]  no re-weighting: fresh samples
    """
    if level == "token":
        return difference
    total = difference.sum(axis=1, keepdims=True)
    if level == "sequence_mean":
        return total / lengths(mask)
    return total if level == "sequence_sum" else mx.zeros_like(difference)


def ratios(log_ratio: mx.array) -> mx.array:
    """r = exp(clip(log r, -60, 60)), with zero gradient outside."""
    return mx.exp(mx.clip(log_ratio, -LIMIT, LIMIT))


def importance(difference: mx.array, mask: mx.array, recipe: Recipe) -> mx.array:
    """w = π_old/π_sampler within [floor, cap], from x = log π_old - log π_sampler; constant. [B,T]

    token     w_t = exp(x_t)       truncate  clip(w, floor, cap)
    sequence  w   = exp(Σ_t x_t)   mask      w, and 0 where it is below floor or above cap

    Corrects for a sampler whose probabilities differ from the trainer's, as TRL does.
    """
    level, _, beyond = recipe.importance_mode.partition("_")
    level = "sequence_sum" if level == "sequence" else "token"
    w = mx.broadcast_to(ratios(log_ratios(difference, mask, level)), mask.shape)
    low, high = recipe.importance_floor, recipe.importance_cap
    if beyond == "truncate":
        return mx.stop_gradient(mx.clip(w, low, high))
    return mx.stop_gradient(mx.where((w < low) | (w > high), 0.0, w))


def answer_weight(difference: mx.array, importance: mx.array, recipe: Recipe) -> mx.array:
    """log W = Σ_t log π/π_old + log of the importance weights, for VESPO. [B,1]

    Each log-ratio is held within ±20, each importance weight and W itself within 1e-8 and e^20, as
    in TRL: a token whose weight is 0 all but leaves its answer out.
    """
    log_w = mx.clip(difference, -MAX_LOG, MAX_LOG).sum(axis=1, keepdims=True)
    if recipe.importance_cap > 0:
        if recipe.has_sequence_importance:
            importance = importance[:, :1]
        log_w = log_w + mx.clip(mx.log(importance), MIN_LOG, MAX_LOG).sum(axis=1, keepdims=True)
    return mx.clip(log_w, MIN_LOG, MAX_LOG)


def near_sampler(
    new: mx.array, sampler: mx.array, advantage: mx.array, mask: mx.array, limit: float
) -> mx.array:
    """[A ≥ 0 or Σ_t log(π_sampler/π)/|o| ≤ limit]: drop bad answers far off policy. [B,T]

    The off-policy sequence mask of DeepSeek-V3.2 (arXiv:2512.02556, eq. 9).
    """
    far = (sampler - new).sum(axis=1, keepdims=True) / lengths(mask)
    return (advantage >= 0) | (far <= limit)
