"""Properties of every recipe with every sampler correction."""

from itertools import pairwise
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_engine.config.recipes import RECIPES, SETTINGS, Recipe, recipe
from grpo_engine.config.trl_names import NO_CAP
from grpo_engine.maths.metrics import metrics
from grpo_engine.maths.trust import Targets, targets_of
from grpo_engine.maths.weight import totals_of
from tests.engine.maths.helpers import assert_close, gradient_of, loss_of, number, random_batch

MODES = SETTINGS["importance_mode"].choices
SAMPLING = [name for name, made in RECIPES.items() if not made.demonstrates]
NAMES = st.sampled_from(SAMPLING)
MODE = st.sampled_from(MODES)
SEEDS = st.integers(0, 10_000)
CAPS = st.sampled_from([1.0, 1.3, 3.0])
FLOORS = st.sampled_from([0.0, 0.7, 0.95])
FAR = st.sampled_from([0.0, 0.02, 0.2])


def batch_for(name: str, seed: int) -> dict[str, Any]:
    """A batch whose advantages come from the recipe's signal."""
    batch = random_batch(seed)
    if RECIPES[name].trust == "target":
        batch["advantages"] = mx.sign(batch["advantages"])
    return batch


def without_leash(name: str, **changes: Any) -> Recipe:
    """The recipe with a loss of only the push and the critic."""
    given = {"beta": 0.0} if RECIPES[name].anchor_place == "loss" else {}
    return recipe(name, **given, **changes)


@given(NAMES, MODE, SEEDS)
def test_without_caps_the_weight_is_the_ratio_of_trainer_to_sampler(
    name: str, mode: str, seed: int
) -> None:
    batch = batch_for(name, seed)
    found = loss_of(batch, recipe(name, importance_cap=NO_CAP, importance_mode=mode)).terms
    mask = np.array(batch["mask"])
    gap = (np.array(batch["old"]) - np.array(batch["sampler"])) * mask
    if mode.startswith("sequence"):
        gap = np.broadcast_to(gap.sum(axis=1, keepdims=True), gap.shape)
    assert_close(np.array(found.importance)[mask], np.exp(gap)[mask], rtol=1e-5)
    assert (np.array(found.on_policy) == mask).all()


@given(NAMES, MODE, SEEDS, CAPS, FLOORS, FAR)
def test_without_a_gap_every_weight_is_1_and_nothing_is_left_out(
    name: str, mode: str, seed: int, cap: float, floor: float, far: float
) -> None:
    batch = batch_for(name, seed)
    batch |= {"sampler": batch["old"], "new": batch["old"]}
    how = recipe(
        name, importance_cap=cap, importance_floor=floor, importance_mode=mode, off_policy_mask=far
    )
    found, plain = loss_of(batch, how), loss_of(batch, name)
    mask = np.array(batch["mask"])
    assert (np.array(found.terms.importance) == 1).all()
    assert (np.array(found.terms.on_policy) == mask).all()
    assert number(found.value) == number(plain.value)
    assert (np.array(gradient_of(batch, how)) == np.array(gradient_of(batch, name))).all()
    measured = metrics(found.terms, how)
    assert number(measured["sampling/masked_ratio"][0]) == 0


@given(NAMES, st.sampled_from(["sequence_truncate", "sequence_mask"]), SEEDS, CAPS, FLOORS)
def test_a_weight_of_completions_is_one_number_for_all_their_tokens(
    name: str, mode: str, seed: int, cap: float, floor: float
) -> None:
    if floor >= cap:
        return
    how = recipe(name, importance_cap=cap, importance_floor=floor, importance_mode=mode)
    found = np.array(loss_of(batch_for(name, seed), how).terms.importance)
    assert (found == found[:, :1]).all()
    inside = (found >= np.float32(floor)) & (found <= np.float32(cap))
    assert (inside if mode.endswith("truncate") else inside | (found == 0)).all()


@given(NAMES, MODE, SEEDS, CAPS, FLOORS, FAR)
def test_what_is_left_out_has_no_gradient_and_still_counts(
    name: str, mode: str, seed: int, cap: float, floor: float, far: float
) -> None:
    if floor >= cap:
        return
    batch = batch_for(name, seed)
    how = without_leash(
        name, importance_cap=cap, importance_floor=floor, importance_mode=mode, off_policy_mask=far
    )
    terms, slope = loss_of(batch, how).terms, np.array(gradient_of(batch, how))
    out = np.array(batch["mask"]) & ~np.array(terms.on_policy)
    if how.ratio.startswith("sequence"):
        # a token acts on its completion's ratio: only whole completions are without gradient
        out = out & (np.array(batch["mask"]) == out).all(axis=1, keepdims=True)
    assert (slope[out] == 0).all()
    assert not np.array(terms.updated)[out].any()
    assert_close(terms.weight, loss_of(batch, without_leash(name)).terms.weight)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["grpo", "gspo", "cispo", "vespo"])
def test_some_of_those_batches_do_leave_tokens_out(name: str, mode: str) -> None:
    how = without_leash(name, importance_cap=1.3, importance_mode=mode, off_policy_mask=0.02)
    found = [loss_of(batch_for(name, seed), how).terms for seed in range(4)]
    left = sum(float((np.array(t.mask) & ~np.array(t.on_policy)).sum()) for t in found)
    assert 0 < left < sum(float(np.array(t.mask).sum()) for t in found)


@given(
    st.sampled_from([name for name in SAMPLING if RECIPES[name].weight != "per_batch_token"]),
    MODE,
    SEEDS,
    CAPS,
    FAR,
    st.integers(1, 7),
)
def test_micro_batches_sum_to_the_batch(
    name: str, mode: str, seed: int, cap: float, far: float, cut: int
) -> None:
    batch = batch_for(name, seed)
    how = recipe(name, importance_cap=cap, importance_mode=mode, off_policy_mask=far)
    totals = totals_of(batch["mask"])
    targets = None
    if how.trust == "target":
        targets = targets_of(
            batch["old"],
            batch["advantages"][:, None] * batch["mask"],
            batch["mask"] > 0,
            batch["token_ids"],
            batch["group_ids"],
        )
    value, slopes = 0.0, []
    for start, end in pairwise((0, cut, 8)):
        part = {key: array[start:end] for key, array in batch.items()}
        own: dict[str, Any] = {"totals": totals}
        if targets is not None:
            own["targets"] = Targets(*(array[start:end] for array in targets))
        value += number(loss_of(part, how, **own).value)
        slopes.append(np.array(gradient_of(part, how, **own)))
    assert_close(value, loss_of(batch, how).value, rtol=1e-4, atol=3e-6)
    assert_close(np.concatenate(slopes), gradient_of(batch, how), rtol=1e-4)


def test_metrics_of_the_weights_are_over_tokens_or_over_completions() -> None:
    # token weights .5, 2, 1.5 of two completions; their products are 1 and 1.5
    x = mx.log(mx.array([[0.5, 2.0], [1.5, 7.0]]))
    batch: dict[str, Any] = {
        "new": mx.zeros((2, 2)),
        "old": mx.zeros((2, 2)),
        "ref": None,
        "sampler": -x,
        "mask": mx.array([[1, 1], [1, 0]]),
        "advantages": mx.ones(2),
        "group_ids": None,
    }
    expected = {
        ("token_truncate", 2.0): (0.5, 4 / 3, 2.0, 0.0),
        ("token_truncate", 1.0): (0.5, 2.5 / 3, 1.0, 0.0),
        # 2 is above 1.8: 0, .5 and 1.5, mean 2/3; one of three tokens is masked
        ("token_mask", 1.8): (0.0, 2 / 3, 1.5, 1 / 3),
        ("sequence_truncate", 2.0): (1.0, 1.25, 1.5, 0.0),
    }
    for (mode, cap), wanted in expected.items():
        how = recipe("dr-grpo", importance_cap=cap, importance_mode=mode)
        found = metrics(loss_of(batch, how).terms, how)
        names = [f"sampling/importance_sampling_ratio/{part}" for part in ("min", "mean", "max")]
        pairs = [found[name] for name in (*names, "sampling/masked_ratio")]
        shares = [number(total / count) for total, count in pairs]
        assert shares == pytest.approx(wanted, rel=1e-5, abs=1e-7)
    assert not any(
        name.startswith("sampling/") for name in metrics(loss_of(batch, "dr-grpo").terms, "dr-grpo")
    )
