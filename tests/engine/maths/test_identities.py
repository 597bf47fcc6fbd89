"""The identities of the loss, as properties that hold for any numbers."""

from itertools import pairwise
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from grpo_engine.config.recipes import RECIPES, SETTINGS, Recipe, recipe
from grpo_engine.errors import RecipeError
from grpo_engine.maths.advantage import advantages
from grpo_engine.maths.weight import Totals, totals_of
from grpo_tui.app.text.recipe_text import formula
from tests.engine.maths.helpers import (
    assert_close,
    gradient_of,
    loss_of,
    number,
    numbers,
    random_batch,
)

SEEDS = st.integers(0, 10_000)
RECIPE_NAMES = st.sampled_from(list(RECIPES))
WEIGHTS = SETTINGS["weight"].choices


# Rewards -----------------------------------------------------------------------------------

GROUP_SIGNALS = ("group_mean", "group_standard", "leave_one_out", "batch_standard", "group_sign")


@pytest.mark.parametrize("signal", GROUP_SIGNALS)
def test_equal_rewards_are_worth_a_literal_zero_and_push_nothing(signal: str) -> None:
    how = recipe("grpo", signal=signal, beta=0.0)
    # the mean of seven times .1 is not .1 in float32; the second group has a signal
    found = advantages([[0.1]] * 7 + [[1.0], [0.0]], [0] * 7 + [1, 1], how)
    assert numbers(found.values)[:7] == [0.0] * 7
    assert numbers(found.group_std)[:7] == [0.0] * 7
    assert numbers(found.has_signal) == [False] * 7 + [True] * 2
    batch = random_batch(0) | {"group_ids": mx.zeros(8)}
    worth = advantages([[0.1]] * 8, [0] * 8, how).values
    assert number(mx.abs(gradient_of(batch, how, advantages=worth)).max()) == 0


# Mask --------------------------------------------------------------------------------------


@given(SEEDS, RECIPE_NAMES, st.sampled_from([0.0, -1e4, float("nan"), float("-inf")]))
def test_padding_has_no_loss_and_no_gradient_whatever_stands_there(
    seed: int, name: str, junk: float
) -> None:
    batch = random_batch(seed)
    padding = ~batch["mask"]
    arrays = ("new", "old", "ref", "entropy", "values", "old_values", "returns", "sampler")
    dirty = batch | {key: mx.where(padding, junk, batch[key]) for key in arrays}
    clean_loss, dirty_loss = loss_of(batch, name), loss_of(dirty, name)
    assert numbers(dirty_loss.value) == numbers(clean_loss.value)
    assert (np.array(dirty_loss.terms.contribution)[np.array(padding)] == 0).all()
    gradient = np.array(gradient_of(dirty, name))
    assert (gradient[np.array(padding)] == 0).all()
    assert_close(gradient, gradient_of(batch, name), rtol=0, atol=0)


@given(SEEDS, RECIPE_NAMES)
def test_the_contributions_of_the_tokens_sum_to_the_loss(seed: int, name: str) -> None:
    how = recipe(name, entropy_bonus=0.1)
    found = loss_of(random_batch(seed), how)
    assert_close(np.array(found.terms.contribution).sum(), found.value)


# Weight ------------------------------------------------------------------------------------


def in_parts(batch: dict[str, Any], how: Recipe, parts: int, totals: Totals) -> tuple[Any, Any]:
    """Loss and gradient of the batch as the sum over micro-batches of different sizes."""
    rows = len(np.array(batch["mask"]))
    edges = [0, *sorted({1 + 2 * k for k in range(parts - 1)}), rows]
    values, gradients = [], []
    for start, end in pairwise(edges):
        part = {name: array[start:end] for name, array in batch.items()}
        values.append(number(loss_of(part, how, totals=totals).value))
        gradients.append(np.array(gradient_of(part, how, totals=totals)))
    return sum(values), np.concatenate(gradients)


@given(SEEDS, st.sampled_from([w for w in WEIGHTS if w != "per_batch_token"]), st.integers(2, 4))
def test_micro_batches_sum_to_the_batch(seed: int, weight: str, parts: int) -> None:
    batch = random_batch(seed)
    how = recipe("grpo", weight=weight, entropy_bonus=0.2, entropy_top_quantile=0.6)
    totals = totals_of(batch["mask"], recipe=how, entropy=batch["entropy"])
    value, gradient = in_parts(batch, how, parts, totals)
    assert_close(value, loss_of(batch, how).value, atol=3e-6)
    assert_close(gradient, gradient_of(batch, how))


@pytest.mark.parametrize("name", [n for n in RECIPES if not RECIPES[n].per_token])
@given(
    st.integers(0, 1000),
    st.sampled_from(SETTINGS["weight"].choices),
    st.sampled_from(SETTINGS["ratio"].choices),
)
def test_the_formula_says_which_sums_over_tokens_count_an_answer_by_its_length(
    name: str, seed: int, weight: str, ratio: str
) -> None:
    try:
        how = recipe(name, weight=weight, ratio=ratio)
    except RecipeError:
        return
    batch = random_batch(seed)
    push, inside = np.array(loss_of(batch, how).terms.objective), np.array(batch["mask"])
    several = [row[own] for row, own in zip(push, inside, strict=True) if own.sum() > 1]
    assume(len(several) > 1)
    one_number = all(np.ptp(row) == 0 for row in several)
    said = "Σₜ Jᵢ = |oᵢ|·Jᵢ" in formula(how)[-1]
    assert said == (one_number and weight != "per_sequence")
