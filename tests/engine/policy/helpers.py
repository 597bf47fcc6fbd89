"""Helpers for the policy tests: rows of random ids, changed weights, gradients."""

import gc
import random
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm import convert

from grpo_engine.cpu import blas
from grpo_engine.events import Event
from grpo_engine.policy.batch import TokenRow, micro_batches
from grpo_engine.policy.forward import token_scores
from grpo_engine.policy.policy import Policy
from grpo_engine.policy.trees import flatten
from tests.engine.policy.oracle import oracle_loss, row_weights
from tests.engine.tiny import write_model

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


def packed_model(folder: Path, *, group: int = 32, bits: int = 8) -> Path:
    """A tiny model, quantised by mlx-lm."""
    source = write_model(folder / "whole", hidden_size=64, intermediate_size=128)
    convert(str(source), str(folder / "packed"), quantize=True, q_group_size=group, q_bits=bits)
    return folder / "packed"


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


def assert_equals_oracle(
    policy: Policy,
    rows: Sequence[TokenRow],
    *,
    together: Sequence[int] = (1, 5, 99),
    tolerance: float = 2e-4,
    **options: Any,
) -> None:
    """Assert values and gradients of the oracle, however many rows run together."""
    expected, expected_gradient = oracle_loss(policy, rows, **options)
    for max_rows in together:
        value, gradient = weighted_loss(policy, rows, max_rows=max_rows, **options)
        assert value == pytest.approx(expected, rel=1e-4, abs=1e-3)
        assert largest_difference(gradient, expected_gradient) < tolerance


def largest_difference(ours: dict[str, mx.array], theirs: dict[str, mx.array]) -> float:
    """The largest difference of two gradients, relative to the largest entry."""
    assert ours.keys() == theirs.keys()
    scale = max(largest(value) for value in theirs.values())
    return max(largest(ours[name] - theirs[name]) for name in theirs) / scale


def largest(array: mx.array) -> float:
    """The largest absolute value."""
    return float(np.array(mx.abs(array).max().astype(mx.float32)))


def peak_memory(compute: Callable[[], Any]) -> int:
    """The most bytes that MLX has in use while it computes this, beyond those before."""
    gc.collect()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    mx.eval(compute())
    return mx.get_peak_memory() - before


def drain(run: Generator[Event, None, Any]) -> tuple[list[Event], Any]:
    """All events of a generator, and its return value."""
    events = []
    try:
        while True:
            events.append(next(run))
    except StopIteration as end:
        return events, end.value
