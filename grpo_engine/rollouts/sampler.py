"""Draws one token per row with its log-probability, in one batched call per step.

Order: repetition penalty, temperature, top_k, top_p, min_p. mlx-lm's sampler applies top_p and
min_p at temperature 1, so the values are not comparable.
Axes: n rows, V vocabulary.
"""

from typing import NamedTuple

import mlx.core as mx

from grpo_engine.policy.head import Normalised, normalise
from grpo_engine.rollouts.noise import uniforms
from grpo_engine.rollouts.types import Sampling


class Drawn(NamedTuple):
    """One token per row, [n] each."""

    tokens: mx.array
    logprobs: mx.array  # under the distribution sampled from
    raw_logprobs: mx.array  # at the temperature, over the whole vocabulary


def draw(
    logits: mx.array,
    sampling: Sampling,
    keys: mx.array,
    *,
    seen: mx.array | None = None,
    forced: mx.array | None = None,
) -> Drawn:
    """Sample by an exponential race: argmin_i E_i / p_i with E_i = -log u_i has distribution p.

    `seen` [n, V] marks tokens for the repetition penalty; `forced` [n] overrides the token where it
    is not negative.
    """
    greedy = sampling.temperature == 0
    raw = normalise(logits, 1.0 if greedy else sampling.temperature)
    chances = raw
    if seen is not None:
        chances = normalise(penalised(logits, seen, sampling.repetition_penalty),
                            1.0 if greedy else sampling.temperature)  # fmt: skip
    if greedy:
        tokens = mx.argmax(chances.shifted, axis=1)
    else:
        chances = truncated(chances, sampling)
        race = -mx.log2(uniforms(keys, logits.shape[1]))
        tokens = mx.argmax(chances.exponentials / race, axis=1)
    if forced is not None:
        tokens = mx.where(forced >= 0, forced, tokens.astype(mx.int32))
    logprobs = raw_logprobs = raw.logprob(tokens)
    if chances is not raw:
        logprobs = chances.logprob(tokens)
    if forced is not None:
        logprobs = mx.where(forced >= 0, 0.0, logprobs)  # a forced token has probability 1
    return Drawn(tokens, logprobs, raw_logprobs)


def penalised(logits: mx.array, seen: mx.array, penalty: float) -> mx.array:
    """Penalise seen tokens: positive logits / penalty, negative logits * penalty."""
    return mx.where(seen, mx.where(logits > 0, logits / penalty, logits * penalty), logits)


def truncated(parts: Normalised, sampling: Sampling) -> Normalised:
    """Apply top_k, top_p and min_p; ties at a threshold are kept."""
    if sampling.top_k == 0 and sampling.top_p >= 1 and sampling.min_p == 0:
        return parts
    weights, total = parts.exponentials, parts.total
    bound = mx.zeros_like(total)
    candidates = weights
    if 0 < sampling.top_k < weights.shape[1]:
        candidates = mx.topk(weights, sampling.top_k, axis=1)
        bound = candidates.min(axis=1, keepdims=True)
        total = candidates.sum(axis=1, keepdims=True)
    if sampling.top_p < 1:
        ordered = -mx.sort(-candidates, axis=1)
        before = mx.cumsum(ordered, axis=1) - ordered
        inside = mx.where(before < sampling.top_p * total, ordered, 1.0)  # the likeliest has 1
        bound = mx.maximum(bound, inside.min(axis=1, keepdims=True))
    if sampling.min_p > 0:
        bound = mx.maximum(bound, sampling.min_p)
    kept = weights >= bound
    left = mx.where(kept, weights, 0.0)
    return Normalised(
        shifted=mx.where(kept, parts.shifted, -mx.inf), exponentials=left,
        total=left.sum(axis=1, keepdims=True),
    )  # fmt: skip
