"""Draws one token per row with its log-probability, in one batched call per step.

Order: repetition penalty, temperature, top_k, top_p, min_p. mlx-lm's sampler applies top_p and
min_p at temperature 1, so the values are not comparable.
Axes: n rows, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from grpo_engine.cpu.kernels import Kernels
from grpo_engine.policy.head import Normalised, normalise
from grpo_engine.rollouts.noise import NOISE, events, late_keys, late_times, uniforms
from grpo_engine.rollouts.types import Sampling

USED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "noise")


class Draw(NamedTuple):
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
    kernels: Kernels | None = None,
) -> Draw:
    """Sample by an exponential race: argmin_i E_i / p_i has distribution p; see `noise`.

    `seen` [n, V] marks tokens for the repetition penalty; `forced` [n] overrides the token where it
    is not negative. `kernels` draw where nothing but the temperature changes the distribution.
    """
    is_plain = seen is None and forced is None and not sampling.truncated
    if kernels and is_plain and sampling.temperature > 0 and sampling.noise == NOISE:
        return _kernel_draw(kernels, logits, sampling.temperature, keys)
    use = replace(Sampling(), **{name: getattr(sampling, name) for name in USED})
    compiled = _compiled(use, has_seen=seen is not None, has_forced=forced is not None)
    marks = [array for array in (seen, forced) if array is not None]
    return Draw(*compiled(logits, keys, *marks))


def _kernel_draw(kernels: Kernels, logits: mx.array, temperature: float, keys: mx.array) -> Draw:
    width = logits.shape[1]
    times, tokens = events(keys, width)
    logits, late, times = logits.astype(mx.float32), late_keys(keys), times / width
    mx.eval(logits, late, times, tokens)
    winners, logprobs = map(
        mx.array,
        kernels.draw(
            np.asarray(logits), temperature, np.array(late), (np.array(times), np.array(tokens))
        ),
    )
    return Draw(winners, logprobs, logprobs)


@lru_cache(maxsize=64)
def _compiled(
    sampling: Sampling, *, has_seen: bool, has_forced: bool
) -> Callable[..., tuple[mx.array, ...]]:
    """The draw with these parameters as one compiled function; traced anew for each shape."""

    def run(logits: mx.array, keys: mx.array, *marks: mx.array) -> tuple[mx.array, ...]:
        seen = marks[0] if has_seen else None
        return tuple(_draw(logits, sampling, keys, seen, marks[-1] if has_forced else None))

    compiled: Callable[..., tuple[mx.array, ...]] = mx.compile(run)
    return compiled


def _draw(
    logits: mx.array,
    sampling: Sampling,
    keys: mx.array,
    seen: mx.array | None,
    forced: mx.array | None,
) -> Draw:
    temperature = sampling.temperature or 1.0
    raw = chances = normalise(logits, temperature)
    if seen is not None:
        penalty = sampling.repetition_penalty
        chances = normalise(penalised(logits, seen, penalty), temperature)
    if sampling.temperature == 0:
        tokens = mx.argmax(chances.scaled, axis=1)
    else:
        chances = truncated(chances, sampling)
        tokens = _winners(chances.exponentials, keys, sampling.noise)
    if forced is not None:
        tokens = mx.where(forced >= 0, forced, tokens.astype(mx.int32))
    logprobs = raw_logprobs = raw.logprob(tokens)
    if chances is not raw:
        logprobs = chances.logprob(tokens)
    if forced is not None:
        logprobs = mx.where(forced >= 0, 0.0, logprobs)  # a forced token has probability 1
    return Draw(tokens, logprobs, raw_logprobs)


def _winners(weights: mx.array, keys: mx.array, version: int) -> mx.array:
    """The token of each row that wins the race, [n, V] -> [n]."""
    width = weights.shape[1]
    if version < 3:  # of a run that was begun by an earlier version
        return mx.argmax(weights / -mx.log2(uniforms(keys, width)), axis=1)
    times, at = events(keys, width)
    early = mx.take_along_axis(weights, at, axis=1) / (times / width)
    late = weights / (times[:, -1:] / width + late_times(keys, width))
    rows = mx.array(
        np.arange(len(keys), dtype=np.uint32)[:, None]
    )  # a constant of the compiled draw
    return mx.argmax(late.at[rows, at].maximum(early), axis=1)


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
    selected = weights >= bound
    weights = mx.where(selected, weights, 0.0)
    return Normalised(
        scaled=mx.where(selected, parts.scaled, -mx.inf),
        top=parts.top,
        exponentials=weights,
        total=weights.sum(axis=1, keepdims=True),
    )
