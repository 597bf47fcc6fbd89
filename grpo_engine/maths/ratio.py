"""Question 2: how is old data re-weighted? The ratio of the policy to the one that sampled."""

import mlx.core as mx

from grpo_engine.maths.arrays import clamp, lengths


def log_ratios(difference: mx.array, mask: mx.array, kind: str) -> mx.array:
    """log r before clamping, from x_t = log π(o_t) - log π_old(o_t), which is 0 off the mask.

    token          x_t               [B,T]  PPO (arXiv:1707.06347), GRPO (arXiv:2402.03300)
    sequence_mean  Σ_t x_t / |o|     [B,1]  GSPO (arXiv:2507.18071, eq. 7)
    sequence_sum   Σ_t x_t           [B,1]  the probability ratio of whole completions
    none           0                 [B,T]  no re-weighting: fresh samples
    """
    if kind == "token":
        return difference
    total = difference.sum(axis=1, keepdims=True)
    if kind == "sequence_mean":
        return total / lengths(mask)
    return total if kind == "sequence_sum" else mx.zeros_like(difference)


def ratios(log_ratio: mx.array) -> mx.array:
    """r = exp(clip(log r, -60, 60))."""
    return mx.exp(clamp(log_ratio))


def importance(old: mx.array, sampler: mx.array, cap: float) -> mx.array:
    """w_t = min(π_old/π_sampler, cap), a constant. [B,T]

    Corrects for a sampler whose probabilities differ from the trainer's (truncated importance
    sampling, https://fengyao.notion.site/off-policy-rl).
    """
    return mx.stop_gradient(mx.minimum(ratios(old - sampler), cap))
