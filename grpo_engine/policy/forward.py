"""Log-probabilities of given completions: log_softmax(logits / temperature)[token], float32."""

from dataclasses import dataclass

import mlx.core as mx

from grpo_engine.policy.batch import TokenBatch
from grpo_engine.policy.load import Policy


@dataclass(frozen=True, slots=True, eq=False)
class TokenScores:
    """What a forward gives at each completion token; 0 on padding."""

    logprobs: mx.array  # [B, T] float32
    entropy: mx.array | None = None  # [B, T] nats
    values: mx.array | None = None  # [B, T] the critic's value before the token


def token_scores(
    policy: Policy,
    batch: TokenBatch,
    *,
    temperature: float,
    entropy: bool = False,
    entropy_gradient: bool = False,
    values: bool = False,
) -> TokenScores:
    """Score the batch, differentiable with respect to `policy.module`.

    Use it within `nn.value_and_grad(policy.module, ...)` or alone; it evaluates nothing.
    `entropy` without `entropy_gradient` is a constant to the gradient.
    """
    raise NotImplementedError
