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
from grpo_engine.maths.anchor import k1, k2, k3
from grpo_engine.maths.loss import policy_loss
from grpo_engine.maths.metrics import metrics
from grpo_engine.maths.trust import clip
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


# At the first update after sampling -------------------------------------------------------


@given(SEEDS, RECIPE_NAMES)
def test_at_the_first_update_every_ratio_is_one_and_nothing_is_clipped(
    seed: int, name: str
) -> None:
    batch = random_batch(seed)
    if name == "how-much":
        batch["advantages"] = mx.sign(batch["advantages"])
    found = loss_of(batch, name, old=None)
    inside = np.array(batch["mask"])
    assert (np.array(found.terms.ratio)[inside] == 1).all()
    measured = metrics(found.terms, name)
    assert number(measured["kl_to_old"][0]) == 0
    for key in ("clip_ratio/region_mean", "cispo_clip_ratio"):
        assert number(measured.get(key, (mx.array(0.0),))[0]) == 0


@given(SEEDS, st.sampled_from(["grpo", "dapo", "cispo", "sapo", "off-policy"]))
def test_at_ratio_one_every_rule_of_trust_has_the_gradient_of_reinforce(
    seed: int, name: str
) -> None:
    batch = random_batch(seed)
    how = recipe(name, beta=0.0)
    plain = recipe("reinforce", weight=how.weight)
    assert_close(gradient_of(batch, how, old=None), gradient_of(batch, plain))


# Trust -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "worth", "side"),
    [
        (0.5, 1.0, 0),  # pushed up from below: free
        (0.5, -1.0, -1),
        (1.5, 1.0, 1),
        (1.5, -1.0, 0),  # pushed down from above: free
        (1.5, 0.0, 0),
        (0.5, 0.0, 0),
        (3.0, -1.0, 2),  # the ceiling δ = 2
        (3.0, 1.0, 1),
        (3.0, 0.0, 0),
        (1.1, 1.0, 0),
    ],
)
def test_a_bound_is_active_only_on_the_side_of_the_push(
    ratio: float, worth: float, side: int
) -> None:
    assert number(clip(mx.array(ratio), mx.array(worth), 0.8, 1.2, 2.0).side_BT) == side


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


# Anchor ------------------------------------------------------------------------------------

LOGITS = st.lists(st.floats(-2, 2), min_size=5, max_size=5)


@given(LOGITS, LOGITS)
def test_k1_and_k3_weighted_by_the_policy_sum_to_kl(a: list[float], b: list[float]) -> None:
    policy, reference = (np.exp(z) / np.exp(z).sum() for z in (np.array(a), np.array(b)))
    x = np.log(policy / reference)
    kl = (policy * x).sum()
    for estimate in (k1, k3):
        assert (policy * np.array(estimate(mx.array(x)))).sum() == pytest.approx(kl, abs=1e-6)


@given(LOGITS, LOGITS)
def test_gradients_in_expectation_none_of_k1_and_kl_of_k2_alone(
    a: list[float], b: list[float]
) -> None:
    logits, other = mx.array(a), mx.array(b)
    policy = mx.softmax(logits)

    def log_policy(z: mx.array) -> mx.array:
        return z - mx.logsumexp(z)

    def expected(estimate: Any) -> Any:
        def value(z: mx.array) -> mx.array:
            total: mx.array = (policy * estimate(log_policy(z) - log_policy(other))).sum()
            return total

        return np.array(mx.grad(value)(logits))

    def kl(z: mx.array) -> mx.array:
        return (mx.softmax(z) * (log_policy(z) - log_policy(other))).sum()

    true = np.array(mx.grad(kl)(logits))
    assume(np.abs(true).max() > 0.1)
    assert_close(expected(k1), np.zeros(5), atol=1e-5)
    assert_close(expected(k2), true, atol=1e-5)
    assert np.abs(expected(k3) - true).max() > 1e-4


@given(LOGITS, LOGITS, LOGITS, st.sampled_from(["k1", "k3"]))
def test_reweighted_estimates_have_the_value_and_the_gradient_of_kl(
    a: list[float], b: list[float], c: list[float], kind: str
) -> None:
    # one token, sampled from π_old: Σ_v π_old·r·k = Σ_v π·k = KL(π, π_ref), for any π_old
    logits, old, ref = (mx.array(given) for given in (a, b, c))
    old, ref = (x - mx.logsumexp(x) for x in (old, ref))
    how = recipe("dr-grpo", beta=1.0, anchor=kind, anchor_reweighted=True, weight="sum")

    def expected(x: mx.array) -> mx.array:
        """The expectation over old of the anchor in the loss of each token."""
        new = (x - mx.logsumexp(x))[:, None]
        terms = policy_loss(
            new,
            old[:, None],
            ref[:, None],
            mx.zeros(len(a)),
            mx.ones(new.shape),
            how,
            group_ids=None,
            max_length=1,
        ).terms
        return (mx.exp(old)[:, None] * terms.contribution).sum()

    def kl(x: mx.array) -> mx.array:
        new = x - mx.logsumexp(x)
        return (mx.exp(new) * (new - ref)).sum()

    assert_close(expected(logits), kl(logits), rtol=1e-4, atol=1e-5)
    assert_close(mx.grad(expected)(logits), mx.grad(kl)(logits), rtol=1e-3, atol=1e-4)


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
