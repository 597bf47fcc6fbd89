"""Advantages: every signal, several reward functions, missing rewards, steps."""

from dataclasses import asdict
from fractions import Fraction
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_engine.config.recipes import recipe
from grpo_engine.errors import MathsError
from grpo_engine.events import RewardValue, rewards_differ, total_reward
from grpo_engine.maths.advantage import advantages, reward_metrics
from grpo_engine.rewards.scoring import Scores
from tests.engine.maths import oracle
from tests.engine.maths.helpers import assert_close, numbers

NAN = float("nan")
PLAIN_SIGNALS = (
    "return",
    "minus_batch_mean",
    "group_mean",
    "group_standard",
    "leave_one_out",
    "batch_standard",
    "group_sign",
)
COMPARING = ("group_mean", "group_standard", "leave_one_out", "batch_standard", "group_sign")
REWARD = st.one_of(st.just(NAN), st.integers(-6, 6).map(float), st.floats(-5, 5))
SCORED = st.lists(st.tuples(REWARD, st.integers(0, 2)), min_size=1, max_size=9)


@given(SCORED, st.sampled_from(PLAIN_SIGNALS), st.sampled_from(["sample", "population"]))
def test_every_signal_is_that_of_the_independent_one(
    scored: list[tuple[float, int]], signal: str, std: str
) -> None:
    changes = {"signal": signal, "beta": 0.0}
    if signal not in ("return", "minus_batch_mean", "group_mean", "leave_one_out"):
        changes["std"] = std
    how = recipe("grpo", **changes)
    rewards = np.array([np.float32(r) for r, _ in scored], dtype=np.float64)
    groups = np.array([group for _, group in scored])
    expected = oracle.signal(asdict(how), rewards, groups)
    found = advantages([[r] for r, _ in scored], groups.tolist(), how).values
    near = np.abs(np.abs(expected) - 0.1) < 1e-3 if signal == "group_sign" else False
    assert_close(np.where(near, 0, np.array(found)), np.where(near, 0, expected), 2e-4, 1e-4)


def differ_in_all(rows: list[list[float]], weights: list[float], signal: str) -> set[bool]:
    """Whether totals differ: for signals, for events and refills, and for metrics."""
    cells = [
        tuple(RewardValue(name="f", value=r, weight=w) for r, w in zip(row, weights, strict=True))
        for row in rows
    ]
    scores = Scores(rewards=tuple(cells))
    found = advantages(rows, [0] * len(rows), recipe("grpo", signal=signal, beta=0.0), weights)
    flat, _ = reward_metrics(rows, found, [])["frac_reward_zero_std"]
    return {
        scores.differ,
        rewards_differ(scores.totals()),
        any(numbers(found.has_signal)),
        any(numbers(found.values)),
        flat == 0,
    }


DECIMAL = st.integers(-40, 40).map(lambda n: Fraction(n, 20))


@given(st.data(), st.sampled_from(COMPARING))
def test_totals_that_are_equal_before_rounding_are_equal_everywhere(
    data: st.DataObject, signal: str
) -> None:
    *head, last = weights = data.draw(st.lists(DECIMAL.filter(bool), min_size=2, max_size=6))
    total, rows = data.draw(DECIMAL), []
    for _ in range(data.draw(st.integers(2, 5))):
        row = [data.draw(DECIMAL) for _ in head]
        rest = total - sum(weight * reward for weight, reward in zip(head, row, strict=True))
        rows.append([float(reward) for reward in (*row, rest / last)])
    assert differ_in_all(rows, [float(weight) for weight in weights], signal) == {False}


@given(
    st.lists(st.floats(0.1, 2), min_size=3, max_size=3),
    st.sampled_from(COMPARING),
    st.floats(1e-4, 1),
    st.integers(-6, 6),
)
def test_totals_that_differ_by_a_ten_thousandth_are_different(
    row: list[float], signal: str, share: float, power: int
) -> None:
    rows = [[value * 10.0**power * scale for value in row] for scale in (1, 1 + share)]
    assert differ_in_all(rows, [1.0] * 3, signal) == {True}


FIRST = {"combine": "normalize_then_sum"}
EXACT = FIRST | {"signal_eps": 0.0}
# recipe, settings, rewards, groups, weights, advantages
WORKED: dict[str, tuple[str, dict[str, Any], Any, list[int], Any, list[float]]] = {
    # rewards 0 .5 .53 1: mean .5075, sample std .4084: .1·std = .0408; .5 and .53 are within it
    "a sign ignores a tenth of the std": (
        *("how-much", {}, [0.0, 0.5, 0.53, 1.0], [0] * 4, None),
        [-1, 0, 0, 1],
    ),
    # rewards 0 .4 .6 1: mean .5, std .4163: .0416; .4 and .6 are beyond it
    "a sign beyond it": ("how-much", {}, [0.0, 0.4, 0.6, 1.0], [0] * 4, None, [-1, -1, 1, 1]),
    # others of 1: (0 + .5)/2 = .25 -> .75; of 0: .75 -> -.75; of .5: .5 -> 0
    "leave one out": ("rloo", {"beta": 0.0}, [1.0, 0.0, 0.5], [0] * 3, None, [0.75, -0.75, 0]),
    # groups (0, 1) and (5, 5): rewards of the batch 0 1 5 5: mean 2.75,
    # squares 7.5625 3.0625 5.0625 5.0625 = 20.75, sample std √(20.75/3) = 2.6300: ±.5/2.6301
    "the std of the batch": (
        *("grpo", {"signal": "batch_standard"}, [0.0, 1.0, 5.0, 5.0], [0, 0, 1, 1], None),
        [-0.19011, 0.19011, 0, 0],
    ),
    # 2·1 + .5·0 = 2, 2·0 + .5·1 = .5: mean 1.25 -> ±.75
    "a weighted sum": ("dr-grpo", {}, [[1, 0], [0, 1]], [0, 0], [2.0, 0.5], [0.75, -0.75]),
    # totals 1, none, 1
    "a function that does not apply": (
        *("reinforce", {}, [[1.0, None], [None, NAN], [0.5, 0.5]], [0, 0, 0], None),
        [1, 0, 1],
    ),
    "a demonstration": ("sft", {}, [None, 0.0], [0, 0], None, [1, 1]),
    # in float32, 1e8 + 1 - 1e8 = 0
    "a sum in Python floats": ("reinforce", {}, [[1e8, 1.0, -1e8]], [0], mx.ones(3), [1]),
    "half precision": ("dr-grpo", {}, mx.array([1.0, 0.0], mx.float16), [3, 3], None, [0.5, -0.5]),
    # f: 10 0 | 4 4 -> ±.70710 | 0 0 (5/(7.0711+1e-4)); g: 0 1 | 1 0 -> -+.70701 | ±.70701
    # weights 1, 2: x = .7071 - 1.4140 = -.7069, +.7069 | 1.4140, -1.4140; mean 0
    # sample std √((2·.7069² + 2·1.4140²)/3) = 1.2908: x/(1.2908 + 1e-4)
    "normalised first": (
        *("grpo", FIRST, [[10.0, 0.0], [0.0, 1.0], [4.0, 1.0], [4.0, 0.0]], [0, 0, 1, 1]),
        [1.0, 2.0],
        [-0.5476, 0.5476, 1.0954, -1.0954],
    ),
    # f on rows 0 1: ±.70701; g on rows 2 3: ±.70701; x = the one that applies, row 4 has none
    # std √(4·.70701²/3) = .81639: .70701/.81649 = .8659
    "functions that apply to some": (
        *("grpo", FIRST, [[1, None], [0, None], [None, 1], [None, 0], [None, None]]),
        *([0, 0, 1, 1, 1], None, [0.8659, -0.8659, 0.8659, -0.8659, 0]),
    ),
    # f: ±.70701, g applies to row 0 alone: x = .70701 -.70701 | 0 0, whose std is .57727
    "a group that no function tells apart": (
        *("grpo", FIRST, [[1.0, 3.0], [0.0, None], [0.1, None], [0.1, None]], [0, 0, 1, 1], None),
        [1.2245, -1.2245, 0, 0],
    ),
    # signals of ±.7071 whose sum over two functions that disagree is rounding
    "signals that cancel": (
        *("grpo", EXACT, [[0.1, 0.3], [0.3, 0.1], [0.2, 0.2]], [0, 0, 0], None),
        [0, 0, 0],
    ),
    # f, g: ±.5/(.70711 + 1) = ±.29289; x: 0 0 | .29289 -.29289; std √(2·.08579/3) = .23915:
    # .29289/(.23915 + 1) = .23636
    "a group whose signals cancel is at the mean of the batch": (
        *("grpo", FIRST | {"signal_eps": 1.0}, [[1, 0], [0, 1], [1, 0], [0, 0]], [0, 0, 1, 1]),
        *(None, [0, 0, 0.23636, -0.23636]),
    ),
    # two functions disagree: .70711·w - .70711·w·(1 + 1e-6) is half a millionth of both parts
    "signals within a millionth": ("grpo", EXACT, np.eye(2), [0, 0], [9.0, 9.0 + 9e-6], [0, 0]),
    # 1e-5 is above it: x, -x have the sample std √2·|x|
    "signals beyond a millionth": (
        *("grpo", EXACT, np.eye(2), [0, 0], [9.0, 9.0 + 9e-5]),
        [-0.70711, 0.70711],
    ),
}


@pytest.mark.parametrize("name", WORKED)
def test_worked_advantages(name: str) -> None:
    base, changes, rewards, groups, weights, expected = WORKED[name]
    found = advantages(rewards, groups, recipe(base, **changes), weights).values
    assert numbers(found) == pytest.approx(expected, abs=2e-4)
    assert [worth == 0 for worth in numbers(found)] == [worth == 0 for worth in expected]
    assert found.dtype == mx.float32


def test_totals_that_cancel_are_zero_and_small_ones_stay() -> None:
    # .1 + .2 - .3 = 2.8e-17 or 5.6e-17 in floats
    assert total_reward([0.1, 0.2, 0.3], [1.0, 1.0, -1.0]) == 0.0
    assert total_reward([1e9, -1e9 + 1e-3], [1.0, 1.0]) == pytest.approx(1e-3, rel=1e-3)


def test_groups_whose_functions_differ_but_not_their_total_have_a_signal_if_normalised_first() -> (
    None
):
    # all totals are 1; in the first group, (1 - .5)/.707·1 + (0 - .25)/.354·2 = .707 - 1.414
    rows, ids = [[1.0, 0.0], [0.0, 0.5], [1.0, 0.0], [1.0, 0.0]], [0, 0, 1, 1]
    for changes, flat in ((FIRST, 2.0), ({}, 4.0)):
        found = advantages(rows, ids, recipe("grpo", beta=0.0, **changes), [1.0, 2.0])
        assert reward_metrics(rows, found, [])["frac_reward_zero_std"] == (flat, 4.0)
        assert numbers(found.has_signal) == [flat == 2, flat == 2, False, False]


def test_advantages_are_constants() -> None:
    zero, mask = mx.zeros((2, 2)), mx.ones((2, 2))

    def taken(old: mx.array, values: mx.array) -> mx.array:
        rloo = advantages([[1.0], [0.0]], [0, 0], "rloo", mask=mask, old=old, ref=zero)
        ppo = advantages(
            [[1.0], [0.0]],
            [0, 0],
            recipe("ppo", whiten=False),
            mask=mask,
            old=old,
            ref=zero,
            values=values,
        )
        assert ppo.returns is not None
        return rloo.values.sum() + rloo.penalty.sum() + ppo.values.sum() + ppo.returns.sum()

    for slope in mx.grad(taken, argnums=(0, 1))(zero, zero):
        assert numbers(slope) == [[0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("scale", [1e30, 1e-30, 1e-44])
def test_rewards_of_any_size_have_finite_advantages(scale: float) -> None:
    for signal in PLAIN_SIGNALS:
        for eps in (0.0, 1e-8):
            changes = {"signal_eps": eps} if signal.endswith("standard") else {}
            how = recipe("grpo", signal=signal, **changes)
            found = advantages([[scale], [-scale], [0.0], [scale]], [0] * 4, how).values
            assert np.isfinite(np.array(found)).all()
    how = recipe("grpo", signal_eps=0.0)
    assert np.isfinite(np.array(advantages([[scale], [0.0]], [0, 0], how).group_std)).all()
    equal = advantages([[scale], [scale]], [0, 0], how)
    assert (numbers(equal.values), numbers(equal.group_std)) == ([0, 0], [0, 0])
    # scaled 1 -1 0 1: mean .25, deviations .75 -1.25 -.25 .75, std √(2.75/3) = .9574
    if scale > 1e-40:
        found = advantages([[scale], [-scale], [0.0], [scale]], [0] * 4, how).values
        assert numbers(found) == pytest.approx([0.7833, -1.3056, -0.2611, 0.7833], abs=1e-3)


# Process supervision ----------------------------------------------------------------------


def process(steps: Any, groups: list[int], mask: list[list[int]], eps: float = 0.0) -> Any:
    how = recipe("grpo-process", signal_eps=eps)
    rewards = [[0.0]] * len(groups)
    return numbers(advantages(rewards, groups, how, mask=mx.array(mask), steps=steps).values)


def test_step_rewards_reach_the_tokens_that_led_to_them() -> None:
    # step rewards 1, 0 | 1: mean 2/3, sample std .57735: .57735, -1.15470 | .57735
    # first completion: tokens 0 1: .57735 - 1.15470 = -.57735; tokens 2 3: -1.15470
    # second: tokens 0 1 2: .57735; token 3 is after its last step: 0
    found = process([[(1, 1.0), (3, 0.0)], [(2, 1.0)]], [0, 0], [[1, 1, 1, 1]] * 2)
    assert found[0] == pytest.approx([-0.57735, -0.57735, -1.15470, -1.15470], abs=1e-4)
    assert found[1] == pytest.approx([0.57735, 0.57735, 0.57735, 0.0], abs=1e-4)


def test_steps_are_normalised_within_their_group_and_padding_gets_nothing() -> None:
    # group 0: 1, 0 -> ±.70711; group 1: all equal -> 0; step rewards without a score are left out
    steps: Any = [[(0, 1.0)], [(1, 0.0), (0, None), (0, NAN)], [(0, 5.0)], [(1, 5.0)]]
    found = process(steps, [0, 0, 1, 1], [[1, 0], [0, 1], [1, 1], [1, 1]])
    assert found[0] == pytest.approx([0.70711, 0], abs=1e-5)
    assert found[1] == pytest.approx([0, -0.70711], abs=1e-5)
    assert found[2] == found[3] == [0, 0]


def test_no_step_with_a_score_is_worth_nothing() -> None:
    assert process([[], [(0, None)]], [0, 0], [[1, 1], [1, 1]]) == [[0, 0], [0, 0]]


# Anchor in the reward -----------------------------------------------------------------------


def test_an_anchor_in_the_reward_is_summed_per_completion_before_the_signal() -> None:
    # x = log π_old - log π_ref: row 0: .2 + .3 = .5, row 1: -.4 (second token is padding)
    # penalty .1·x: .05, -.04; scores .95, .04; others' mean: ±.91
    old = mx.array([[-1.0, -1.0], [-2.0, NAN]])
    ref = mx.array([[-1.2, -1.3], [-1.6, -9.0]])
    how = recipe("rloo", beta=0.1)
    mask = mx.array([[1, 1], [1, 0]])
    found = advantages([[1.0], [0.0]], [0, 0], how, mask=mask, old=old, ref=ref)
    assert numbers(found.penalty) == pytest.approx([0.05, -0.04], abs=1e-6)
    assert numbers(found.values) == pytest.approx([0.91, -0.91], abs=1e-6)
    assert numbers(found.rewards) == [1.0, 0.0]
    assert numbers(found.group_mean) == pytest.approx([0.495, 0.495], abs=1e-6)


def test_an_anchor_of_completions_in_the_reward_estimates_after_the_sum() -> None:
    # k2 of the sum .2 + .3 = .5: .125; k2 token by token: .02 + .045 = .065
    old, ref = mx.array([[-1.0, -1.0]]), mx.array([[-1.2, -1.3]])
    for level, expected in (("sequence", 0.125), ("token", 0.065)):
        how = recipe("rloo", beta=1.0, anchor="k2", anchor_level=level)
        found = advantages([[1.0]], [0], how, mask=mx.ones((1, 2)), old=old, ref=ref)
        assert numbers(found.penalty) == pytest.approx([expected], abs=1e-6)


# Refusals -----------------------------------------------------------------------------------


FULL, NARROW = mx.ones((2, 3)), mx.ones((2, 2))


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("grpo", {"group_ids": [0]}, r"group_ids must have shape \(2,\), got \(1,\)"),
        ("grpo", {"weights": [1.0, 1.0]}, r"weights must have shape \(1,\), got \(2,\)"),
        ("grpo", {"rewards": mx.zeros((2, 1, 1))}, r"rewards must have shape \(B, F\)"),
        ("rloo", {}, "anchor=k1 in the reward.* reads mask: give mask"),
        ("rloo", {"mask": FULL}, "reads old: give old"),
        ("rloo", {"mask": FULL, "old": FULL}, "reads ref: give ref"),
        ("rloo", {"mask": FULL, "old": NARROW}, "old must have shape"),
        (
            "rloo",
            {"mask": FULL, "old": FULL, "ref": NARROW},
            "ref must have shape",
        ),
        ("ppo", {"beta": 0}, r"recipe ppo \(signal=gae\) reads mask: give mask"),
        ("ppo", {"beta": 0, "mask": FULL}, "reads values: give values"),
        (
            "ppo",
            {"beta": 0, "mask": FULL, "values": NARROW},
            "values must have shape",
        ),
        ("grpo-process", {}, r"recipe grpo-process \(signal=process\) reads mask: give mask"),
        ("grpo-process", {"mask": FULL}, "reads steps: give steps"),
        ("grpo-process", {"mask": FULL, "steps": [[]]}, "steps must list 2 .* got 1"),
        (
            "grpo-process",
            {"mask": FULL, "steps": [[], [(3, 1.0)]]},
            r"step of completion 1 ends at token 3, not in 0\.\.2",
        ),
        (
            "grpo-process",
            {"mask": FULL, "steps": [[(-1, 1.0)], []]},
            "step of completion 0 ends at token -1",
        ),
    ],
)
def test_arrays_that_do_not_fit_are_refused_in_words(
    name: str, given: dict[str, Any], words: str
) -> None:
    now: dict[str, Any] = {"rewards": [[1.0], [0.0]], "group_ids": [0, 0]} | given
    how = recipe(name, beta=now.pop("beta")) if "beta" in now else recipe(name)
    with pytest.raises(MathsError, match=words):
        advantages(now.pop("rewards"), now.pop("group_ids"), how, **now)


# Metrics ------------------------------------------------------------------------------------


def test_reward_metrics_have_the_names_and_numbers_of_trl() -> None:
    # totals 1, 0, 1, 1 with weights 1 and 0: mean .75, sample std of the batch .5
    # second function applies to 2 of 4: mean 3, std √(2·1) = 1.41421; no group has a spread
    rewards = [[1.0, 2.0], [0.0, None], [1.0, None], [1.0, 4.0]]
    worth = advantages(rewards, [0, 1, 2, 2], "grpo", [1.0, 0.0])
    found = reward_metrics(rewards, worth, ["exact", "form"])
    means = {name: total / count for name, (total, count) in found.items()}
    assert means == pytest.approx(
        {
            "reward": 0.75,
            "reward_std": 0.5,
            "rewards/exact/mean": 0.75,
            "rewards/exact/std": 0.5,
            "rewards/form/mean": 3.0,
            "rewards/form/std": 1.41421,
            "frac_reward_zero_std": 1.0,
        },
        abs=1e-5,
    )
    assert found["rewards/form/mean"] == (6.0, 2.0)


def test_a_function_that_applies_to_one_completion_has_no_deviation() -> None:
    rewards = [[1.0, 2.0], [0.0, None]]
    worth = advantages(rewards, [0, 0], "grpo")
    found = reward_metrics(rewards, worth, ["exact", "form"])
    assert found["rewards/form/std"] == (0.0, 0.0)
    assert found["rewards/form/mean"] == (2.0, 1.0)
    alone = reward_metrics([[3.0]], advantages([[3.0]], [0], "grpo"), ["exact"])
    assert alone["reward_std"] == (0.0, 0.0)


def test_columns_of_one_name_are_of_different_completions() -> None:
    # 1 and 3 of the first column, 5 of the second: mean 3, std √((4 + 0 + 4)/2) = 2
    rewards = [[1.0, None], [3.0, None], [None, 5.0]]
    found = reward_metrics(rewards, advantages(rewards, [0, 0, 0], "grpo"), ["exact", "exact"])
    assert (found["rewards/exact/mean"], found["rewards/exact/std"]) == ((9.0, 3.0), (2.0, 1.0))
