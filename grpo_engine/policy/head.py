"""log_softmax(logits / temperature)[token] from hidden states, without storing the logits.

Axes: N token positions, D hidden width, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import mlx.core as mx

from grpo_engine.policy.structure import Structure
from grpo_engine.policy.trees import nest

LOG2_E = 1.4426950408889634
Head = Callable[[mx.array], mx.array]


@dataclass(frozen=True, slots=True, eq=False)
class Normalised:
    """A softmax in parts: logits z, their maximum, exponentials of z - max z, and their sum."""

    scaled: mx.array  # [N, V]
    top: mx.array  # [N, 1]
    exponentials: mx.array  # [N, V]
    total: mx.array  # [N, 1]

    @property
    def shifted(self) -> mx.array:
        """z - max z, [N, V]."""
        return self.scaled - self.top

    def logprob(self, tokens: mx.array) -> mx.array:
        """z[token] - logsumexp(z), [N]."""
        chosen = mx.take_along_axis(self.scaled, tokens[:, None], axis=1)
        return (chosen - self.top - mx.log(self.total))[:, 0]

    def entropy(self) -> mx.array:
        """-sum p log p = log sum e^z - sum e^z z / sum e^z, [N]."""
        # A token of probability 0 may have a shifted logit of -inf.
        finite = mx.maximum(self.shifted, -1e4)
        mean = (self.exponentials * finite).sum(axis=1, keepdims=True) / self.total
        return (mx.log(self.total) - mean)[:, 0]


def normalise(logits: mx.array, temperature: float) -> Normalised:
    """The parts of the softmax of logits / temperature, in float32."""
    scaled = logits.astype(mx.float32)
    if temperature != 1:
        scaled = scaled / temperature
    top = scaled.max(axis=1, keepdims=True)
    exponentials = mx.exp(scaled - top)
    return Normalised(scaled, top, exponentials, _sum(exponentials))


def _sum(x: mx.array) -> mx.array:
    """The sum of each row, [N, V] -> [N, 1], in two stages where V allows.

    On a CPU MLX adds one number after another, which loses the 5th digit of 50,000.
    """
    if x.shape[1] % 64 == 0:
        x = x.reshape(x.shape[0], -1, 64).sum(axis=2)
    return x.sum(axis=1, keepdims=True)


class HeadScores(NamedTuple):
    """Log-probability and entropy of each position, [N]."""

    logprobs: mx.array
    entropy: mx.array | None = None


@dataclass(frozen=True, slots=True)
class Scoring:
    """What is computed of the logits of each position."""

    temperature: float
    gradient: bool = True
    entropy: bool = False
    entropy_gradient: bool = False


def constant_scores(head: Head, hidden: mx.array, tokens: mx.array, scoring: Scoring) -> HeadScores:
    """Scores without a gradient."""
    parts = normalise(head(hidden), scoring.temperature)
    return HeadScores(parts.logprob(tokens), parts.entropy() if scoring.entropy else None)


def scores_of_logits(logits: mx.array, tokens: mx.array, scoring: Scoring) -> HeadScores:
    """Scores with MLX's own gradient, which keeps several arrays as large as the logits."""
    logits = logits.astype(mx.float32) / scoring.temperature
    logs = logits - mx.logsumexp(logits, axis=1, keepdims=True)
    entropy = -(mx.exp(logs) * mx.maximum(logs, -1e4)).sum(axis=1) if scoring.entropy else None
    return HeadScores(mx.take_along_axis(logs, tokens[:, None], axis=1)[:, 0], entropy)


def surrogate_scores(
    head: Head, hidden: mx.array, tokens: mx.array, scoring: Scoring
) -> HeadScores:
    """Scores whose gradient with respect to `hidden` is stored as [N, D], not as logits [N, V].

    With p = softmax(logits / T): d logprob / d logits = (onehot(token) - p) / T and
    d entropy / d logits = -p (log p + entropy) / T; the head's backward pass, run during
    the forward, maps both to `hidden`. Only for heads whose weights are not trained.
    """
    temperature, fixed = scoring.temperature, mx.stop_gradient(hidden)
    parts = normalise(head(fixed), temperature)
    # The vjp is linear, so p's denominator is divided out afterwards, at width D instead of V.
    weights = parts.exponentials
    at_token = mx.take_along_axis(weights, tokens[:, None], axis=1)
    cotangent = mx.put_along_axis(weights, tokens[:, None], at_token - parts.total, axis=1)
    slope = _vjp(head, fixed, cotangent) / (-temperature * parts.total)
    logprobs = parts.logprob(tokens)
    entropy = parts.entropy() if scoring.entropy else None
    # before the backward pass, else the logits are in memory until the end
    slope = mx.depends(slope, [array for array in (logprobs, entropy) if array is not None])
    logprobs = with_slope(logprobs, hidden, slope)
    if entropy is None:
        return HeadScores(logprobs)
    if not scoring.entropy_gradient:
        return HeadScores(logprobs, entropy)
    logs = mx.maximum(parts.shifted, -1e4) - mx.log(parts.total)
    p = weights / parts.total
    cotangent = -p * (logs + entropy[:, None]) / temperature
    return HeadScores(logprobs, with_slope(entropy, hidden, _vjp(head, fixed, cotangent)))


def _vjp(head: Head, hidden: mx.array, cotangent: mx.array) -> mx.array:
    _, (slope,) = mx.vjp(lambda h: head(h).astype(mx.float32), [hidden], [cotangent])
    gradient: mx.array = slope.astype(hidden.dtype)
    return gradient


def with_slope(value: mx.array, hidden: mx.array, slope: mx.array) -> mx.array:
    """The value, with d value / d hidden = slope."""
    linear = (hidden.astype(mx.float32) * mx.stop_gradient(slope).astype(mx.float32)).sum(axis=1)
    return mx.stop_gradient(value) + (linear - mx.stop_gradient(linear))


def recomputed_scores(
    parts: Structure, hidden: mx.array, tokens: mx.array, scoring: Scoring
) -> HeadScores:
    """Scores for a trained head: logits are recomputed in the backward pass."""
    trained = parts.outer()

    def run(weights: dict[str, mx.array], states: mx.array) -> list[mx.array]:
        parts.owner.update(nest(weights))
        try:
            scores = scores_of_logits(parts.logits(states), tokens, scoring)
        finally:
            parts.owner.update(nest(trained))
        return [array for array in scores if array is not None]

    return HeadScores(*mx.checkpoint(run)(trained, hidden))
