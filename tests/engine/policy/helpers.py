"""Helpers for the policy tests: rows of random ids, changed weights, gradients."""

import random
from collections.abc import Generator, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from grpo_engine.cpu import blas
from grpo_engine.events import Event
from grpo_engine.policy.batch import TokenRow, micro_batches
from grpo_engine.policy.forward import token_scores
from grpo_engine.policy.policy import Policy
from grpo_engine.policy.trees import flatten
from tests.engine.policy.oracle import row_weights

COMPUTES = [
    "graph",
    pytest.param(
        "kernels",
        marks=pytest.mark.skipif(not blas.ensure().compiled, reason="nothing is compiled here"),
    ),
]
"""The values of `model.compute` to test with."""
CHOSEN_AND_GRAPH = ["auto", pytest.param("graph", marks=pytest.mark.slow)]
"""The one that a run chooses, and among the slow tests the graph."""


def made_up_rows(shape: Sequence[tuple[int, Sequence[int]]]) -> list[TokenRow]:
    """Rows of random ids: (prompt length, completion lengths) per group."""
    source = random.Random(1)
    rows = []
    for length, completions in shape:
        prompt = tuple(source.randrange(200) for _ in range(length))
        rows += [
            TokenRow(prompt, tuple(source.randrange(200) for _ in range(count)))
            for count in completions
        ]
    return rows


def move_weights(policy: Policy, size: float = 0.3) -> None:
    """Move the trained weights away from their initial values."""
    policy.load_trainable(
        {
            name: value + size * mx.random.normal(value.shape, key=mx.random.key(place))
            for place, (name, value) in enumerate(policy.snapshot().items())
        }
    )


def weighted_loss(
    policy: Policy,
    rows: Sequence[TokenRow],
    *,
    temperature: float = 0.7,
    max_rows: int = 5,
    entropy: bool = False,
    values: bool = False,
) -> tuple[float, dict[str, mx.array]]:
    """A weighted sum of log-probabilities, with a different weight per token, and its gradient."""

    def loss() -> mx.array:
        total = mx.array(0.0)
        for batch in micro_batches(rows, max_rows=max_rows):
            scores = token_scores(
                policy,
                batch,
                temperature=temperature,
                entropy=entropy,
                entropy_gradient=entropy,
                values=values,
            )
            weights = mx.array([row_weights(row, batch.width) for row in batch.rows])
            for array in (scores.logprobs, scores.entropy, scores.values):
                if array is not None:
                    total = total + (array * weights).sum()
        return total

    value, gradient = nn.value_and_grad(policy.module, loss)()
    mx.eval(value, gradient)
    return float(value.item()), flatten(gradient)


def largest_difference(ours: dict[str, mx.array], theirs: dict[str, mx.array]) -> float:
    """The largest difference of two gradients, relative to the largest entry."""
    assert ours.keys() == theirs.keys()
    scale = max(largest(value) for value in theirs.values())
    return max(largest(ours[name] - theirs[name]) for name in theirs) / scale


def largest(array: mx.array) -> float:
    """The largest absolute value."""
    return float(np.array(mx.abs(array).max().astype(mx.float32)))


def drain(run: Generator[Event, None, Any]) -> tuple[list[Event], Any]:
    """All events of a generator, and its return value."""
    events = []
    try:
        while True:
            events.append(next(run))
    except StopIteration as end:
        return events, end.value
