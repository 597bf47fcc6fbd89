"""The parts of a recipe besides the six choices: entropy, length and truncation."""

import mlx.core as mx


def entropy_floor(entropy: mx.array, mask: mx.array, share: float) -> mx.array:
    """The (1 - share)-quantile of the entropies on the mask, linearly interpolated. []

    Tokens at or above it are the top `share` (80/20 rule, arXiv:2506.01939).
    """
    beyond = mx.array(3e38)  # sorts after every entropy
    ordered = mx.sort(mx.where(mask, entropy.astype(mx.float32), beyond).flatten())
    last = mx.maximum(mask.astype(mx.float32).sum() - 1, 0.0)
    rank = mx.array(1 - share) * last
    below = mx.floor(rank)
    above = mx.minimum(below + 1, last)
    left, right = ordered[below.astype(mx.int32)], ordered[above.astype(mx.int32)]
    return left + (rank - below) * (right - left)


def entropy_control(
    bonus: float, entropy: float, target: float, step: float = 0.005, most: float = 1.0
) -> tuple[float, float]:
    """The next bonus c = clip(c ± step, 0, most), and the one to apply now.

    c grows while the mean entropy H (nats per token) is at most the target and shrinks above it.
    Above the target the applied bonus is 0 (Skywork-OR1, arXiv:2505.22312).
    """
    low = entropy <= target
    moved = bonus + step if low else bonus - step
    bounded = min(max(moved, 0.0), most)
    return bounded, bounded if low else 0.0


def overlong_penalty(length: mx.array, max_length: int, buffer_share: float) -> mx.array:
    """DAPO's soft length penalty (arXiv:2503.14476, eq. 13), added to the reward. [B]

    With buffer = share·L_max: 0 up to L_max - buffer, then (L_max - buffer - |o|)/buffer, never
    below -1. A share of 0 gives 0.
    """
    buffer = buffer_share * max_length
    if buffer == 0:
        return mx.zeros(length.shape)
    over = (max_length - buffer - length.astype(mx.float32)) / buffer
    return mx.clip(over, -1.0, 0.0)


def without_truncated(mask: mx.array, truncated: mx.array) -> mx.array:
    """The mask [B,T] with the rows of completions cut at the length limit set to 0."""
    return (mask > 0) & (truncated == 0)[:, None]


def completion_lengths(mask: mx.array) -> mx.array:
    """The number of tokens of each completion. [B]"""
    return mask.astype(mx.int32).sum(axis=1)
