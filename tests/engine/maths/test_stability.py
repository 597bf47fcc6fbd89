"""No NaN or Inf in value or gradient if the maths has none, and constants stay constant."""

import math
from dataclasses import fields
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from grpo_engine.config.recipes import RECIPES, Recipe, recipe
from grpo_engine.errors import MathsError
from grpo_engine.maths.metrics import metrics
from grpo_engine.maths.ratio import completion_log_weight
from tests.engine.maths.helpers import (
    assert_close,
    gradient_of,
    loss_of,
    number,
    numbers,
    random_batch,
)

EVERY = list(RECIPES)


def assert_finite(batch: dict[str, Any], name: str | Recipe, **changes: Any) -> None:
    """Assert that value, terms, metrics and gradient are finite."""
    found = loss_of(batch, name, **changes)
    assert np.isfinite(np.array(found.value))
    for part in fields(found.terms):
        held = getattr(found.terms, part.name)
        assert not isinstance(held, mx.array) or np.isfinite(np.array(held)).all(), part
    for pair in metrics(found.terms, name).values():
        assert np.isfinite([number(part) for part in pair]).all()
    assert np.isfinite(np.array(gradient_of(batch, name, **changes))).all()


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("far", [80.0, -80.0, 1000.0])
def test_far_log_ratios_are_finite(name: str, far: float) -> None:
    batch = random_batch(0, columns=40)
    for other in ("old", "ref"):
        away = batch | {other: batch["new"] - far}
        for sign in (-1, 1):
            assert_finite(away, name, advantages=sign * mx.abs(batch["advantages"]))


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
@pytest.mark.parametrize("far", [-500.0, -70.0, 70.0, 500.0])
def test_a_reweighted_anchor_is_finite_however_far_both_policies_are(kind: str, far: float) -> None:
    batch = random_batch(3)
    how = recipe("grpo", anchor=kind, anchor_reweighted=True)
    for apart in (-400.0, 400.0):
        assert_finite(batch, how, old=batch["new"] - far, ref=batch["new"] + apart)


@pytest.mark.parametrize("name", EVERY)
def test_masked_and_empty_and_single_completions_are_finite(name: str) -> None:
    batch = random_batch(2)
    assert_finite(batch, name, mask=mx.zeros((8, 6)))
    assert number(loss_of(batch, name, mask=mx.zeros((8, 6))).value) == 0
    one = {key: array[:, :1] if array.ndim == 2 else array for key, array in batch.items()}
    assert_finite(one, name, mask=mx.ones((8, 1)))
    none = {key: array[:, :0] if array.ndim == 2 else array for key, array in batch.items()}
    assert number(loss_of(none, name).value) == 0 if name != "how-much" else True
    pair = {key: array[:2] for key, array in batch.items()}
    assert_finite(pair, name)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("kind", [mx.float16, mx.bfloat16])
def test_half_precision_is_computed_in_float32(name: str, kind: Any) -> None:
    batch = random_batch(3)
    arrays = ("new", "old", "ref", "advantages", "values", "old_values", "returns")
    half = batch | {key: batch[key].astype(kind) for key in arrays}
    back = batch | {key: half[key].astype(mx.float32) for key in arrays}
    assert loss_of(half, name).value.dtype == mx.float32
    assert numbers(loss_of(half, name).value) == numbers(loss_of(back, name).value)
    gradient = gradient_of(half, name)
    assert gradient.dtype == kind
    assert_close(
        gradient.astype(mx.float32), gradient_of(back, name).astype(kind).astype(mx.float32)
    )


def test_a_ratio_is_clamped_at_sixty_with_no_gradient_beyond_and_counted() -> None:
    # A = -1: only the clamp stops a push down from above
    batch = random_batch(4, rows=1, columns=4)
    gap = mx.array([[60.0, 61.0, -59.0, -61.0]])
    batch |= {
        "new": mx.zeros((1, 4)),
        "old": -gap,
        "mask": mx.ones((1, 4)),
        "advantages": mx.array([-1.0]),
    }
    how = recipe("off-policy", weight="sum")
    terms = loss_of(batch, how).terms
    assert numbers(terms.clamped) == [[False, True, False, True]]
    assert_close(mx.log(terms.ratio), [[60, 60, -59, -60]], rtol=1e-4)
    moved = numbers(gradient_of(batch, how) != 0)[0]
    assert moved[1:] == [False, True, False]
    assert_close(terms.log_ratio, gap)
    assert number(metrics(terms, how)["ratio/clamped"][0]) == 2


def test_k3_far_below_the_reference_is_clamped_and_far_above_it_is_exact() -> None:
    # x = 80: e^-80 + 80 - 1 = 79, slope 1; x = -80: held at e^60 - 61, slope 0
    batch = random_batch(6, rows=1, columns=2)
    batch |= {"mask": mx.ones((1, 2)), "advantages": mx.zeros(1)}
    batch["ref"] = batch["new"] + mx.array([[-80.0, 80.0]])
    how = recipe("grpo", beta=1.0, weight="sum")
    terms = loss_of(batch, how).terms
    assert_close(terms.anchor, [[79, np.exp(60) - 61]], rtol=1e-5)
    assert numbers(gradient_of(batch, how)) == [[1.0, 0.0]]


@pytest.mark.parametrize("name", EVERY)
def test_only_the_policy_the_entropy_and_the_critic_carry_a_gradient(name: str) -> None:
    capped = {} if RECIPES[name].demonstrates else {"importance_cap": 2.0}
    how = recipe(name, entropy_bonus=0.1, entropy_top_quantile=0.5, **capped)
    batch = random_batch(7)
    for constant in ("old", "ref", "advantages", "sampler", "old_values", "returns"):
        found = np.array(gradient_of(batch, how, constant))
        assert (found == 0).all(), constant


# recipe, its settings, changes of the batch, the refusal
REFUSED: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("grpo", {}, {"mask": mx.ones((8, 5))}, r"mask must have shape \(8, 6\), got \(8, 5\)"),
    ("grpo", {}, {"old": mx.ones((8, 1))}, r"old must have shape \(8, 6\)"),
    ("grpo", {}, {"advantages": mx.ones(6)}, r"shape \(8,\) or \(8, 6\), got \(6,\)"),
    ("grpo", {}, {"advantages": mx.ones((8, 1))}, "advantages must have shape"),
    ("grpo", {}, {"values": mx.ones((8,))}, "values must have shape"),
    ("grpo", {}, {"ref": None}, "recipe grpo .beta=0.04. reads ref: give ref"),
    ("grpo", {"entropy_bonus": 0.1}, {"entropy": None}, "entropy_bonus=0.1. reads entropy"),
    ("grpo", {"entropy_top_quantile": 0.2}, {"entropy": None}, "top_quantile=0.2. reads"),
    ("grpo", {"importance_cap": 1.0}, {"sampler": None}, "importance_cap=1. reads sampler"),
    ("dr-grpo", {}, {"max_length": None}, "weight=constant divides by the maximum length"),
    *(
        ("ppo", {}, {name: None}, "needs values, old_values and returns")
        for name in ("values", "old_values", "returns")
    ),
]


@pytest.mark.parametrize("case", REFUSED, ids=[words for *_, words in REFUSED])
def test_what_does_not_fit_or_is_missing_is_refused_in_words(case: Any) -> None:
    name, choice, changes, words = case
    batch, how = random_batch(8), recipe(name, **choice)
    loss_of(batch, how)
    with pytest.raises(MathsError, match=words):
        loss_of(batch, how, **changes)


@pytest.mark.slow  # MLX calls the C++ compiler
def test_the_loss_can_be_compiled() -> None:
    batch = random_batch(11)

    def loss(new: mx.array) -> mx.array:
        return loss_of(batch, "grpo", new=new).value

    value, gradient = mx.compile(mx.value_and_grad(loss))(batch["new"])
    assert_close(value, loss_of(batch, "grpo").value)
    assert_close(gradient, gradient_of(batch, "grpo"))


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        ([25.0, -22.0, 0.5], 0.5),  # tokens are held at ±20 and cancel
        ([20.5, -10.0], 10.0),
        ([19.0, 19.0], 20.0),
        ([-19.0, -19.0], math.log(1e-8)),
    ],
)
def test_the_ratio_of_an_answer_in_vespo_is_held_at_both_ends(
    x: list[float], expected: float
) -> None:
    unread = mx.full((1, len(x)), 7.0)  # without a cap there is no correction for the sampler
    found = completion_log_weight(mx.array([x]), unread, recipe("vespo"))
    assert numbers(found) == [[pytest.approx(expected, abs=1e-5)]]


def test_a_weight_of_nought_for_the_sampler_counts_as_one_in_a_hundred_million() -> None:
    # Σ x = 1; weights 0 and e: log 1e-8 + 1; one weight e for the answer: 1
    x, weights = mx.array([[0.5, 0.5]]), mx.array([[0.0, math.e]])
    how = recipe("vespo", importance_cap=3.0)
    assert numbers(completion_log_weight(x * 9, weights, how)) == [
        [pytest.approx(math.log(1e-8) + 10)]
    ]
    of_answer = recipe("vespo", importance_cap=3.0, importance_mode="sequence_mask")
    both = mx.full((1, 2), math.e)
    assert numbers(completion_log_weight(x, both, of_answer)) == [[pytest.approx(2.0)]]
    least = recipe("vespo", importance_cap=1.0)
    assert numbers(completion_log_weight(x, 1 / both, least)) == [[pytest.approx(-1.0)]]
