"""Draws one token per row with its log-probability, in one batched call per step.

Order: repetition penalty, temperature, top_k, top_p, min_p. mlx-lm's sampler applies top_p and
min_p at temperature 1, so the values are not comparable.
Axes: B rows, V vocabulary.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from grpo_engine.cpu.kernels import Kernels
from grpo_engine.policy.head import Normalised, normalise
from grpo_engine.rollouts.noise import NOISE, events, late_keys, late_times, uniforms
from grpo_engine.rollouts.types import Sampling


class Draw(NamedTuple):
    """One token per row, [B] each."""

    tokens: mx.array
    logprobs: mx.array  # under the distribution sampled from
    raw_logprobs: mx.array  # at the temperature, over the whole vocabulary


def draw(
    logits_BV: mx.array,
    sampling: Sampling,
    keys: mx.array,
    *,
    seen_BV: mx.array | None = None,
    forced_B: mx.array | None = None,
    kernels: Kernels | None = None,
) -> Draw:
    """Sample by an exponential race: argmin_i E_i / p_i has distribution p; see `noise`.

    `seen_BV` marks tokens for the repetition penalty; `forced_B` overrides the token where it is
    not negative. `kernels` draw where nothing but the temperature changes the distribution.
    """
    is_plain = seen_BV is None and forced_B is None and not sampling.truncated
    if kernels and is_plain and sampling.temperature > 0 and sampling.noise == NOISE:
        return _kernel_draw(kernels, logits_BV, sampling.temperature, keys)
    compiled = _compiled(sampling, has_seen=seen_BV is not None, has_forced=forced_B is not None)
    marks = [array for array in (seen_BV, forced_B) if array is not None]
    return Draw(*compiled(logits_BV, keys, *marks))


def _kernel_draw(kernels: Kernels, logits_BV: mx.array, temperature: float, keys: mx.array) -> Draw:
    width = logits_BV.shape[1]
    times_BK, tokens_BK = events(keys, width)
    logits_BV, late, times_BK = logits_BV.astype(mx.float32), late_keys(keys), times_BK / width
    mx.eval(logits_BV, late, times_BK, tokens_BK)
    events_BK = np.array(times_BK), np.array(tokens_BK)
    winners_B, logprobs_B = map(
        mx.array,
        kernels.draw(np.asarray(logits_BV), temperature, np.array(late), events_BK),
    )
    return Draw(winners_B, logprobs_B, logprobs_B)


@lru_cache(maxsize=64)
def _compiled(
    sampling: Sampling, *, has_seen: bool, has_forced: bool
) -> Callable[..., tuple[mx.array, ...]]:
    """The draw with these parameters as one compiled function; traced anew for each shape."""

    def run(logits_BV: mx.array, keys: mx.array, *marks: mx.array) -> tuple[mx.array, ...]:
        seen_BV = marks[0] if has_seen else None
        return tuple(_draw(logits_BV, sampling, keys, seen_BV, marks[-1] if has_forced else None))

    compiled: Callable[..., tuple[mx.array, ...]] = mx.compile(run)
    return compiled


def _draw(
    logits_BV: mx.array,
    sampling: Sampling,
    keys: mx.array,
    seen_BV: mx.array | None,
    forced_B: mx.array | None,
) -> Draw:
    temperature = sampling.temperature or 1.0
    raw = chances = normalise(logits_BV, temperature)
    if seen_BV is not None:
        penalty = sampling.repetition_penalty
        chances = normalise(penalised(logits_BV, seen_BV, penalty), temperature)
    if sampling.temperature == 0:
        tokens_B = mx.argmax(chances.scaled_NV, axis=1)
    else:
        chances = truncated(chances, sampling)
        tokens_B = _winners(chances.exponentials_NV, keys, sampling.noise)
    if forced_B is not None:
        tokens_B = mx.where(forced_B >= 0, forced_B, tokens_B.astype(mx.int32))
    logprobs_B = raw_logprobs_B = raw.logprob(tokens_B)
    if chances is not raw:
        logprobs_B = chances.logprob(tokens_B)
    if forced_B is not None:
        logprobs_B = mx.where(forced_B >= 0, 0.0, logprobs_B)  # a forced token has probability 1
    return Draw(tokens_B, logprobs_B, raw_logprobs_B)


def _winners(weights_BV: mx.array, keys: mx.array, version: int) -> mx.array:
    """The token of each row that wins the race, [B, V] -> [B]."""
    width = weights_BV.shape[1]
    if version < 3:  # The run was begun by an earlier version.
        return mx.argmax(weights_BV / -mx.log2(uniforms(keys, width)), axis=1)
    times_BK, tokens_BK = events(keys, width)
    early_BK = mx.take_along_axis(weights_BV, tokens_BK, axis=1) / (times_BK / width)
    late_BV = weights_BV / (times_BK[:, -1:] / width + late_times(keys, width))
    rows = np.arange(len(keys), dtype=np.uint32)[:, None]
    return mx.argmax(late_BV.at[mx.array(rows), tokens_BK].maximum(early_BK), axis=1)


def penalised(logits_BV: mx.array, seen_BV: mx.array, penalty: float) -> mx.array:
    """Penalise seen tokens: positive logits / penalty, negative logits * penalty."""
    return mx.where(
        seen_BV, mx.where(logits_BV > 0, logits_BV / penalty, logits_BV * penalty), logits_BV
    )


def truncated(parts: Normalised, sampling: Sampling) -> Normalised:
    """Apply top_k, top_p and min_p; ties at a threshold are kept."""
    if sampling.top_k == 0 and sampling.top_p >= 1 and sampling.min_p == 0:
        return parts
    weights_BV, total_B1 = parts.exponentials_NV, parts.total_N1
    bound_B1 = mx.zeros_like(total_B1)
    candidates = weights_BV  # [B, V], or [B, top_k]
    if 0 < sampling.top_k < weights_BV.shape[1]:
        candidates = mx.topk(weights_BV, sampling.top_k, axis=1)
        bound_B1 = candidates.min(axis=1, keepdims=True)
        total_B1 = candidates.sum(axis=1, keepdims=True)
    if sampling.top_p < 1:
        ordered = -mx.sort(-candidates, axis=1)
        before = mx.cumsum(ordered, axis=1) - ordered
        inside = mx.where(
            before < sampling.top_p * total_B1, ordered, 1.0
        )  # the likeliest token has 1
        bound_B1 = mx.maximum(bound_B1, inside.min(axis=1, keepdims=True))
    if sampling.min_p > 0:
        bound_B1 = mx.maximum(bound_B1, sampling.min_p)
    selected_BV = weights_BV >= bound_B1
    weights_BV = mx.where(selected_BV, weights_BV, 0.0)
    return Normalised(
        scaled_NV=mx.where(selected_BV, parts.scaled_NV, -mx.inf),
        top_N1=parts.top_N1,
        exponentials_NV=weights_BV,
        total_N1=weights_BV.sum(axis=1, keepdims=True),
    )
