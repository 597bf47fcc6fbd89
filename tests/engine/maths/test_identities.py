"""The identities of the loss, as properties that hold for any numbers."""

from itertools import pairwise
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import assume, example, given
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
RATIOS = ("token", "sequence_mean", "sequence_sum")
WEIGHTS = SETTINGS["weight"].choices


def zero_sum(batch: dict[str, Any]) -> dict[str, Any]:
    """The batch with advantages that sum to 0 in each group, and no empty completion."""
    worth = np.array(batch["advantages"]).reshape(-1, 4)
    mask = np.array(batch["mask"])
    mask[:, 0] = True
    centred = (worth - worth.mean(axis=1, keepdims=True)).reshape(-1)
    return batch | {"advantages": mx.array(centred), "mask": mx.array(mask)}


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


@given(SEEDS, RECIPE_NAMES)
def test_at_step_nought_the_kl_is_zero(seed: int, name: str) -> None:
    batch = random_batch(seed)
    found = loss_of(batch, name, old=None, ref=batch["new"])
    assert number(metrics(found.terms, name)["kl"][0]) == 0


@given(SEEDS, st.sampled_from(RATIOS), st.sampled_from(["none", "clip"]))
def test_the_first_value_is_zero_for_a_zero_sum_signal_averaged_per_sequence(
    seed: int, ratio: str, trust: str
) -> None:
    how = recipe("grpo", beta=0.0, ratio=ratio, trust=trust)
    batch = zero_sum(random_batch(seed))
    assert number(loss_of(batch, how, old=None).value) == pytest.approx(0, abs=1e-6)
    assert number(mx.abs(gradient_of(batch, how, old=None)).max()) > 1e-4


@pytest.mark.parametrize(
    "changes",
    [
        {"weight": "per_token"},
        {"weight": "constant"},
        {"weight": "sum"},
        {"trust": "cispo"},
        {"trust": "sapo"},
        {"trust": "none", "ratio": "none"},
    ],
)
def test_the_first_value_is_not_zero_elsewhere_and_the_gradient_never_is(
    changes: dict[str, Any],
) -> None:
    how = recipe("grpo", beta=0.0, **changes)
    batch = zero_sum(random_batch(3))
    assert abs(number(loss_of(batch, how, old=None).value)) > 1e-3
    assert number(mx.abs(gradient_of(batch, how, old=None)).max()) > 1e-4


@given(SEEDS, st.sampled_from(["grpo", "dapo", "cispo", "sapo", "off-policy"]))
def test_at_ratio_one_every_rule_of_trust_has_the_gradient_of_reinforce(
    seed: int, name: str
) -> None:
    batch = random_batch(seed)
    how = recipe(name, beta=0.0)
    plain = recipe("reinforce", weight=how.weight)
    assert_close(gradient_of(batch, how, old=None), gradient_of(batch, plain))


def test_the_first_gradient_is_the_same_with_old_given_as_with_old_left_out() -> None:
    batch = random_batch(4)
    same = gradient_of(batch, "grpo", old=mx.stop_gradient(batch["new"]))
    assert numbers(same) == numbers(gradient_of(batch, "grpo", old=None))


# Trust -------------------------------------------------------------------------------------

LOG_RATIO = st.floats(-3, 3)
WORTH = st.floats(0.1, 3)


@given(LOG_RATIO, WORTH)
def test_a_push_up_is_worth_between_nothing_and_its_bound(x: float, worth: float) -> None:
    found = number(clip(mx.exp(mx.array(x)), mx.array(worth), 0.8, 1.28).objective_BT)
    assert 0 <= found <= 1.28 * worth + 1e-5


@given(LOG_RATIO, WORTH)
def test_a_push_down_is_worth_at_most_its_bound(x: float, worth: float) -> None:
    found = number(clip(mx.exp(mx.array(x)), mx.array(-worth), 0.8, 1.28).objective_BT)
    assert found <= -0.8 * worth + 1e-5


def test_a_push_down_is_unbounded_below_without_a_ceiling() -> None:
    # A = -1, r = 10: min(-10, -1.2) = -10
    assert number(clip(mx.array(10.0), mx.array(-1.0), 0.8, 1.2).objective_BT) == -10


@given(LOG_RATIO, WORTH, st.floats(1.28, 4))
def test_a_ceiling_bounds_a_push_down_from_below(x: float, worth: float, delta: float) -> None:
    found = number(clip(mx.exp(mx.array(x)), mx.array(-worth), 0.8, 1.28, delta).objective_BT)
    assert found >= -delta * worth - 1e-4


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


@given(SEEDS)
def test_tokens_at_an_active_bound_have_no_gradient_and_all_others_have(seed: int) -> None:
    batch, how = random_batch(seed), recipe("grpo", beta=0.0, delta=1.4)
    terms = loss_of(batch, how).terms
    moved = np.array(gradient_of(batch, how)) != 0
    pushed = np.array(terms.mask) & (np.array(terms.advantage) != 0)
    assert (moved == (pushed & (np.array(terms.side) == 0))).all()


# Rewards -----------------------------------------------------------------------------------

GROUP_SIGNALS = ("group_mean", "group_standard", "leave_one_out", "batch_standard", "group_sign")
REWARDS = st.lists(st.integers(-8, 8), min_size=8, max_size=8)
EIGHT = mx.array([0, 1, 0, 1, 0, 1, 0, 1])


def worth_of(rewards: Any, how: str | Recipe) -> mx.array:
    """Advantages of eight completions of two interleaved groups, one reward function."""
    return advantages([[float(r)] for r in rewards], EIGHT, how).values


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


@given(REWARDS, st.integers(-50, 50), st.sampled_from(GROUP_SIGNALS[:3] + GROUP_SIGNALS[4:]))
def test_a_constant_added_to_one_group_changes_nothing(
    rewards: list[int], constant: int, signal: str
) -> None:
    how = recipe("grpo", signal=signal)
    moved = [r + constant * (i % 2) for i, r in enumerate(rewards)]
    assert_close(worth_of(moved, how), worth_of(rewards, how), atol=1e-4)


@given(REWARDS, st.sampled_from([0.125, 0.5, 4.0]), st.sampled_from(["sample", "population"]))
def test_scaled_rewards_are_worth_the_same_with_a_scaled_epsilon(
    rewards: list[int], scale: float, std: str
) -> None:
    wide = recipe("grpo", signal_eps=0.5, std=std)
    narrow = recipe("grpo", signal_eps=0.5 / scale, std=std)
    assert_close(worth_of([scale * r for r in rewards], wide), worth_of(rewards, narrow))


@given(REWARDS)
def test_the_signals_of_a_group_sum_to_zero(rewards: list[int]) -> None:
    for signal in GROUP_SIGNALS[:4]:
        found = np.array(worth_of(rewards, recipe("grpo", signal=signal)))
        assert abs(found[0::2].sum()) < 1e-3
        assert abs(found[1::2].sum()) < 1e-3


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


def test_micro_batches_of_bnpo_are_the_mean_of_their_token_means() -> None:
    batch, how = random_batch(5), recipe("bnpo")
    totals = totals_of(batch["mask"], micro_batches=2)
    value, _ = in_parts(batch, how, 2, totals)
    own = [{k: v[a:b] for k, v in batch.items()} for a, b in ((0, 1), (1, 8))]
    assert_close(value, np.mean([number(loss_of(part, how).value) for part in own]))
    assert abs(value - number(loss_of(batch, how).value)) > 1e-3


def one_for_each_prefix(batch: dict[str, mx.array]) -> mx.array:
    """`old` as from a policy: siblings that agree up to a token share its probability."""
    old, ids, groups = (np.array(batch[name]) for name in ("old", "token_ids", "group_ids"))
    first: dict[tuple[int, ...], float] = {}
    for row, column in np.argwhere(np.array(batch["mask"])):
        prefix = (int(groups[row]), *ids[row, : column + 1].tolist())
        old[row, column] = first.setdefault(prefix, old[row, column])
    return mx.array(old)


@given(SEEDS, RECIPE_NAMES, st.permutations(range(4)))
@example(576, "how-much", [0, 2, 1, 3])  # two siblings have a common prefix
def test_permuting_the_completions_of_a_group_permutes_their_gradients(
    seed: int, name: str, order: list[int]
) -> None:
    batch = random_batch(seed)
    if name == "how-much":
        batch["advantages"] = mx.sign(batch["advantages"])
        batch["old"] = one_for_each_prefix(batch)
    moved = mx.array([*order, 4, 5, 6, 7])
    permuted = {key: array[moved] for key, array in batch.items()}
    assert_close(gradient_of(permuted, name), gradient_of(batch, name)[moved])


# Anchor ------------------------------------------------------------------------------------

LOGITS = st.lists(st.floats(-2, 2), min_size=5, max_size=5)


@given(st.floats(-0.5, 0.5))
def test_k2_and_k3_agree_to_second_order(x: float) -> None:
    # e^-x + x - 1 = x²/2 - x³/6 + x⁴/24 - ...
    both = number(k2(mx.array(x))) - number(k3(mx.array(x)))
    assert both == pytest.approx(x**3 / 6, abs=x**4 / 20 + 1e-7)


@given(LOGITS, LOGITS)
def test_k1_and_k3_weighted_by_the_policy_sum_to_kl(a: list[float], b: list[float]) -> None:
    policy, reference = (np.exp(z) / np.exp(z).sum() for z in (np.array(a), np.array(b)))
    x = np.log(policy / reference)
    kl = (policy * x).sum()
    for estimate in (k1, k3):
        assert (policy * np.array(estimate(mx.array(x)))).sum() == pytest.approx(kl, abs=1e-6)


@given(st.floats(-59, 100))
def test_k3_is_never_negative(x: float) -> None:
    assert number(k3(mx.array(x))) >= 0


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


@given(SEEDS)
def test_an_anchor_of_completions_takes_the_sum_of_their_log_ratios(seed: int) -> None:
    batch = random_batch(seed)
    how = recipe("grpo-sequence", beta=1.0)
    terms = loss_of(batch, how).terms
    x = np.where(batch["mask"], np.array(batch["new"]) - np.array(batch["ref"]), 0).sum(axis=1)
    each = (np.exp(-x) + x - 1)[:, None] * np.array(batch["mask"])
    assert_close(terms.anchor, each, rtol=1e-4)


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


@given(st.integers(0, 1000))
def test_luspo_is_gspo_with_answers_weighed_by_their_length(seed: int) -> None:
    batch = random_batch(seed)
    bounds = {"clip_low": 0.1, "clip_high": 0.2}
    long = loss_of(batch, recipe("luspo", **bounds)).terms.contribution.sum(axis=1)
    mean = loss_of(batch, recipe("gspo", **bounds)).terms.contribution.sum(axis=1)
    assert_close(long, mean * batch["mask"].sum(axis=1))


@given(st.integers(0, 1000))
def test_vespo_at_ratio_one_is_a_policy_gradient_and_fades_far_from_it(seed: int) -> None:
    batch = random_batch(seed)
    plain = recipe("reinforce", weight="per_token")
    assert_close(gradient_of(batch, "vespo", old=None), gradient_of(batch, plain, old=None))
    for far in (8.0, -8.0):
        gates = loss_of(batch, "vespo", old=batch["new"] - far).terms.gate
        assert gates is not None
        some = np.array(batch["mask"]).any(axis=1)
        assert (np.array(gates)[some] < 1e-5).all()


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
