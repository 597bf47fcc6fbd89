"""Test oracle for scoring: the whole model on one row at a time, without any of our own paths."""

from collections.abc import Sequence

import mlx.core as mx
import mlx.nn as nn

from grpo_engine.policy.batch import TokenRow
from grpo_engine.policy.policy import Policy
from grpo_engine.policy.trees import flatten


def row_scores(
    policy: Policy, row: TokenRow, temperature: float
) -> tuple[mx.array, mx.array, mx.array]:
    """log_softmax(logits / T)[token], the entropies and the inputs of a row's tokens, [T] each."""
    inputs = mx.array([[*row.prompt_ids, *row.ids][:-1]])
    logits = policy.model(inputs)[0, len(row.prompt_ids) - 1 :].astype(mx.float32) / temperature
    logs = logits - mx.logsumexp(logits, axis=1, keepdims=True)
    tokens = mx.array(row.ids)[:, None]
    logprobs = mx.take_along_axis(logs, tokens, axis=1)[:, 0]
    return logprobs, -(mx.exp(logs) * logs).sum(axis=1), inputs


def row_weights(row: int, count: int) -> list[float]:
    """Another weight for each token of a row."""
    return [((row * 7 + position * 3) % 5) - 1.7 for position in range(count)]


def oracle_loss(
    policy: Policy,
    rows: Sequence[TokenRow],
    *,
    temperature: float = 0.7,
    entropy: bool = False,
    values: bool = False,
) -> tuple[float, dict[str, mx.array]]:
    """The expected result of `helpers.weighted_loss`, and its gradient by MLX."""

    def loss() -> mx.array:
        total = mx.array(0.0)
        for index, row in enumerate(rows):
            if not row.ids:
                continue
            weights = mx.array(row_weights(index, len(row.ids)))
            weights[mx.array(row.forced, dtype=mx.int32)] = 0
            logprobs, entropies, inputs = row_scores(policy, row, temperature)
            total = total + (logprobs * weights).sum()
            if entropy:
                total = total + (entropies * weights).sum()
            if values:
                assert policy.parts is not None
                states = policy.parts.hidden(inputs)[0, len(row.prompt_ids) - 1 :]
                total = total + (policy.value(states) * weights).sum()
        return total

    policy.module.train()
    value, gradient = nn.value_and_grad(policy.module, loss)()
    mx.eval(value, gradient)
    return float(value.item()), flatten(gradient)
