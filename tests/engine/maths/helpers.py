"""Helpers shared by the maths tests."""

from typing import Any

import mlx.core as mx
import numpy as np

from grpo_engine.config.recipes import Recipe
from grpo_engine.maths.loss import Loss, policy_loss


def number(value: mx.array) -> float:
    """A scalar array as a float."""
    return float(np.array(value))


def numbers(values: mx.array) -> list[Any]:
    """An array as (nested) lists."""
    listed: list[Any] = np.array(values).tolist()
    return listed


def random_batch(seed: int, rows: int = 8, columns: int = 6, drift: float = 0.3) -> dict[str, Any]:
    """Completions of groups of four, one of them empty, with all inputs that any recipe reads."""
    rng = np.random.default_rng(seed)
    shape = (rows, columns)
    new = -rng.exponential(1.0, shape)
    length = rng.integers(1, columns + 1, rows)
    length[rng.integers(0, rows)] = 0
    made = {
        "new": new,
        "old": new + drift * rng.normal(size=shape),
        "ref": new + drift * rng.normal(size=shape),
        "advantages": rng.normal(size=rows),
        "mask": np.arange(columns)[None, :] < length[:, None],
        "entropy": rng.exponential(1.0, shape),
        "values": rng.normal(size=shape),
        "old_values": rng.normal(size=shape),
        "returns": rng.normal(size=shape),
        "sampler": new + drift * rng.normal(size=shape),
        "token_ids": rng.integers(0, 3, shape),
        "group_ids": np.arange(rows) // 4,
    }
    return {name: mx.array(values) for name, values in made.items()}


def loss_of(batch: dict[str, Any], how: str | Recipe, **changes: Any) -> Loss:
    """The loss of a batch from `random_batch`, with some arrays replaced."""
    now = {"max_length": 11} | batch | changes
    new, old, ref, worth, mask = (
        now.pop(name) for name in ("new", "old", "ref", "advantages", "mask")
    )
    return policy_loss(new, old, ref, worth, mask, how, **now)


def gradient_of(
    batch: dict[str, Any], how: str | Recipe, wrt: str = "new", **changes: Any
) -> mx.array:
    """The gradient of that loss with respect to one of its arrays."""

    def value(varied: mx.array) -> mx.array:
        return loss_of(batch, how, **(changes | {wrt: varied})).value

    found: mx.array = mx.grad(value)((batch | changes)[wrt])
    return found


def assert_close(found: Any, expected: Any, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Assert that both are equal within tolerance, for any kind of array."""
    np.testing.assert_allclose(np.array(found), np.array(expected), rtol=rtol, atol=atol)
