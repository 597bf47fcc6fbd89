"""log_softmax(logits / temperature)[token] from hidden states, without storing the logits.

Axes: N token positions, D hidden width, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import mlx.core as mx

from grpo_engine.policy.structure import Structure
from grpo_engine.policy.trees import nest

Head = Callable[[mx.array], mx.array]


@dataclass(frozen=True, slots=True, eq=False)
class Normalised:
    """A softmax in parts: logits z, their maximum, exponentials of z - max z, and their sum."""

    scaled_NV: mx.array
    top_N1: mx.array
    exponentials_NV: mx.array
    total_N1: mx.array

    @property
    def shifted(self) -> mx.array:
        """z - max z, [N, V]."""
        return self.scaled_NV - self.top_N1

    def logprob(self, tokens_N: mx.array) -> mx.array:
        """z[token] - logsumexp(z), [N]."""
        chosen_N1 = mx.take_along_axis(self.scaled_NV, tokens_N[:, None], axis=1)
        return (chosen_N1 - self.top_N1 - mx.log(self.total_N1))[:, 0]

    def entropy(self) -> mx.array:
        """-sum p log p = log sum e^z - sum e^z z / sum e^z, [N]."""
        # A token of probability 0 may have a shifted logit of -inf.
        finite_NV = mx.maximum(self.shifted, -1e4)
        mean_N1 = (self.exponentials_NV * finite_NV).sum(axis=1, keepdims=True) / self.total_N1
        return (mx.log(self.total_N1) - mean_N1)[:, 0]


def normalise(logits_NV: mx.array, temperature: float) -> Normalised:
    """The parts of the softmax of logits / temperature, in float32."""
    scaled_NV = logits_NV.astype(mx.float32)
    if temperature != 1:
        scaled_NV = scaled_NV / temperature
    top_N1 = scaled_NV.max(axis=1, keepdims=True)
    exponentials_NV = mx.exp(scaled_NV - top_N1)
    return Normalised(scaled_NV, top_N1, exponentials_NV, _sum(exponentials_NV))


def _sum(x_NV: mx.array) -> mx.array:
    """The sum of each row, [N, V] -> [N, 1], in two stages where V allows.

    On a CPU MLX adds one number after another, which loses the 5th digit of 50,000.
    """
    if x_NV.shape[1] % 64 == 0:
        x_NV = x_NV.reshape(x_NV.shape[0], -1, 64).sum(axis=2)
    return x_NV.sum(axis=1, keepdims=True)


class HeadScores(NamedTuple):
    """Log-probability and entropy of each position."""

    logprobs_N: mx.array
    entropy_N: mx.array | None = None


@dataclass(frozen=True, slots=True)
class Scoring:
    """The scores to compute from the logits of each position."""

    temperature: float
    gradient: bool = True
    entropy: bool = False
    entropy_gradient: bool = False


def constant_scores(
    head: Head, hidden_ND: mx.array, tokens_N: mx.array, scoring: Scoring
) -> HeadScores:
    """Scores without a gradient."""
    parts = normalise(head(hidden_ND), scoring.temperature)
    return HeadScores(parts.logprob(tokens_N), parts.entropy() if scoring.entropy else None)


def scores_of_logits(logits_NV: mx.array, tokens_N: mx.array, scoring: Scoring) -> HeadScores:
    """Scores with MLX's own gradient, which keeps several arrays as large as the logits."""
    logits_NV = logits_NV.astype(mx.float32) / scoring.temperature
    logs_NV = logits_NV - mx.logsumexp(logits_NV, axis=1, keepdims=True)
    entropy_N = (
        -(mx.exp(logs_NV) * mx.maximum(logs_NV, -1e4)).sum(axis=1) if scoring.entropy else None
    )
    return HeadScores(mx.take_along_axis(logs_NV, tokens_N[:, None], axis=1)[:, 0], entropy_N)


def surrogate_scores(
    head: Head, hidden_ND: mx.array, tokens_N: mx.array, scoring: Scoring
) -> HeadScores:
    """Scores whose gradient with respect to `hidden` is stored as [N, D], not as logits [N, V].

    With p = softmax(logits / T): d logprob / d logits = (onehot(token) - p) / T and
    d entropy / d logits = -p (log p + entropy) / T; the head's backward pass, run during
    the forward, maps both to `hidden`. Only for heads whose weights are not trained.
    """
    temperature, fixed_ND = scoring.temperature, mx.stop_gradient(hidden_ND)
    parts = normalise(head(fixed_ND), temperature)
    # The vjp is linear, so p's denominator is divided out afterwards, at width D instead of V.
    weights_NV = parts.exponentials_NV
    at_token_N1 = mx.take_along_axis(weights_NV, tokens_N[:, None], axis=1)
    cotangent_NV = mx.put_along_axis(
        weights_NV, tokens_N[:, None], at_token_N1 - parts.total_N1, axis=1
    )
    slope_ND = _vjp(head, fixed_ND, cotangent_NV) / (-temperature * parts.total_N1)
    logprobs_N = parts.logprob(tokens_N)
    entropy_N = parts.entropy() if scoring.entropy else None
    # The slope is computed before the backward pass, or the logits are in memory until the end.
    slope_ND = mx.depends(
        slope_ND, [array for array in (logprobs_N, entropy_N) if array is not None]
    )
    logprobs_N = with_slope(logprobs_N, hidden_ND, slope_ND)
    if entropy_N is None:
        return HeadScores(logprobs_N)
    if not scoring.entropy_gradient:
        return HeadScores(logprobs_N, entropy_N)
    logs_NV = mx.maximum(parts.shifted, -1e4) - mx.log(parts.total_N1)
    p_NV = weights_NV / parts.total_N1
    cotangent_NV = -p_NV * (logs_NV + entropy_N[:, None]) / temperature
    return HeadScores(
        logprobs_N, with_slope(entropy_N, hidden_ND, _vjp(head, fixed_ND, cotangent_NV))
    )


def _vjp(head: Head, hidden_ND: mx.array, cotangent_NV: mx.array) -> mx.array:
    _, (slope_ND,) = mx.vjp(lambda h: head(h).astype(mx.float32), [hidden_ND], [cotangent_NV])
    gradient: mx.array = slope_ND.astype(hidden_ND.dtype)
    return gradient


def with_slope(value_N: mx.array, hidden_ND: mx.array, slope_ND: mx.array) -> mx.array:
    """The value, with d value / d hidden = slope."""
    linear_N = (hidden_ND.astype(mx.float32) * mx.stop_gradient(slope_ND).astype(mx.float32)).sum(
        axis=1
    )
    return mx.stop_gradient(value_N) + (linear_N - mx.stop_gradient(linear_N))


def recomputed_scores(
    parts: Structure, hidden_ND: mx.array, tokens_N: mx.array, scoring: Scoring
) -> HeadScores:
    """Scores for a trained head: logits are recomputed in the backward pass."""
    trained = parts.outer()

    def run(weights: dict[str, mx.array], states_ND: mx.array) -> list[mx.array]:
        parts.owner.update(nest(weights))
        try:
            scores = scores_of_logits(parts.logits(states_ND), tokens_N, scoring)
        finally:
            parts.owner.update(nest(trained))
        return [array for array in scores if array is not None]

    return HeadScores(*mx.checkpoint(run)(trained, hidden_ND))
