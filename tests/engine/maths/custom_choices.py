"""Choices that are built in, written as a user would: in a file, for `file.py:function`."""

import mlx.core as mx


def standard(rewards_PG: mx.array) -> mx.array:
    """GRPO's: (r - mean)/(std + 1e-4) of the group, 0 if all are equal."""
    deviation_PG = rewards_PG - rewards_PG.mean(axis=1, keepdims=True)
    std_P1 = mx.sqrt((deviation_PG**2).sum(axis=1, keepdims=True) / (rewards_PG.shape[1] - 1))
    return mx.where(std_P1 > 1e-6, deviation_PG / (std_P1 + 1e-4), 0.0)


def mean(rewards_PG: mx.array) -> mx.array:
    """Dr. GRPO's."""
    return rewards_PG - rewards_PG.mean(axis=1, keepdims=True)


def clip(ratio_BT: mx.array, advantages_BT: mx.array) -> mx.array:
    """PPO's with 0.2 on both sides."""
    clipped_BT = mx.clip(ratio_BT, 1 - 0.2, 1 + 0.2)
    return mx.minimum(ratio_BT * advantages_BT, clipped_BT * advantages_BT)


def narrow(log_ratio_BT: mx.array, advantages_BT: mx.array) -> mx.array:
    """GSPO's, from the log-ratio of whole answers."""
    ratio_BT = mx.exp(log_ratio_BT)
    clipped_BT = mx.clip(ratio_BT, 1 - 3e-4, 1 + 4e-4)
    return mx.minimum(ratio_BT * advantages_BT, clipped_BT * advantages_BT)


def capped(ratio_BT: mx.array, advantages_BT: mx.array, logprobs_BT: mx.array) -> mx.array:
    """CISPO's."""
    return mx.stop_gradient(mx.minimum(ratio_BT, 5.0)) * advantages_BT * logprobs_BT


def k3(ref_log_ratio_BT: mx.array) -> mx.array:
    x = mx.maximum(ref_log_ratio_BT, -60.0)
    return mx.expm1(-x) + x


def per_sequence(mask_BT: mx.array, lengths_B: mx.array, rows: float) -> mx.array:
    return mask_BT / (lengths_B[:, None] * rows)


def constant(mask_BT: mx.array, rows: float, max_length: int) -> mx.array:
    return mask_BT / (rows * max_length)


def per_token(mask_BT: mx.array, tokens: mx.array) -> mx.array:
    return mask_BT / tokens


RECIPES = {
    "grpo": {"signal": "standard", "trust": "clip", "anchor": "k3", "weight": "per_sequence"},
    "dr-grpo": {"signal": "mean", "trust": "clip", "weight": "constant"},
    "gspo": {"signal": "standard", "trust": "narrow", "weight": "per_sequence"},
    "cispo": {"signal": "standard", "trust": "capped", "weight": "per_token"},
}


def written(name: str) -> dict[str, str]:
    """The choices of a recipe as functions of this file."""
    return {choice: f"{__file__}:{function}" for choice, function in RECIPES[name].items()}
