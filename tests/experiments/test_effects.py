"""Settings of a sweep compared: worked examples, and coverage in simulated sweeps."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.sweeps import Case, coverage, effects
from grpo_tui.experiments.compare.effects import Shares, effect, mean_effect, paired, spread_of
from grpo_tui.experiments.compare.statistics import t_quantile


def shares(*rows: Sequence[float]) -> Shares:
    return np.array(rows)


OWN = shares([1, 1, 1, 0], [1, 0, 1, 0])
BASE = shares([0, 1, 0, 0], [0, 0, 0, 0])


def test_the_interval_has_seeds_problems_and_answers_in_it() -> None:
    spread = spread_of([BASE, OWN])
    # run means .75 and .5, .25 and 0: each setting's variance is .125² * 2 = .03125, 1 degree each
    assert spread.runs == pytest.approx(0.03125)
    assert spread.df == 2
    # what run and problem leave: in each setting one problem differs by seed, ±.375 there and
    # ∓.125 at the other three, squares 2 * (.140625 + 3 * .015625) = .375; two of them by 2 * 3
    assert spread.samples == pytest.approx(2 * 0.375 / 6)
    found = effect(OWN, BASE, spread, 1)
    # differences 1, 0, 1, 0: squares 1, plus 1 of the half problems, by (4 + 1)(4 + 2)
    problems, answers, seeds = 2 / 30, 0.125 * (1 / 2 + 1 / 2) / 4, 2 * 0.03125 / 2
    total = problems + seeds - answers
    freedom = math.floor(10 * total**2 / (problems**2 / 3 + seeds**2 / 2)) / 10
    half = t_quantile(0.95, freedom) * math.sqrt(total)
    assert found.difference == 0.5
    assert (found.low, found.high) == pytest.approx((0.5 - half, 1.0))
    assert found.method == "t test over seeds and problems"


def test_a_main_effect_is_surer_than_each_of_its_pairs_where_seeds_and_answers_differ() -> None:
    spread = spread_of([BASE, OWN, BASE, OWN])
    mean = mean_effect([(OWN, BASE), (OWN, BASE)], spread, 1)
    # as above, but answers count half: 4 sides of .125 / 2, by 2 pairs squared and 4 problems
    answers = 4 * 0.125 / 2 / 4 / 4
    total = 2 / 30  # of seeds nothing is left: .03125 less .125 / 4 of the answers
    freedom = math.floor(10 * total**2 / (total**2 / 3 + answers**2 / 4)) / 10
    half = t_quantile(0.95, freedom) * math.sqrt(total)
    assert mean.difference == 0.5
    assert mean.low == pytest.approx(0.5 - half)
    single = effect(OWN, BASE, spread, 1)
    assert mean.low > single.low


def test_the_interval_of_a_main_effect_holds_as_often_as_it_says() -> None:
    """Two settings by two, three seeds: one has an effect at each problem, the other has none."""
    random, held = np.random.default_rng(0), 0
    for _ in range(200):
        easy = random.normal(0, 1.2, 60)
        match = random.normal(0, 0.5, 60)
        cells = []
        for level in (0, 0, 1, 1):
            luck = random.normal(0, 0.3, (3, 1))
            chance = 1 / (1 + np.exp(-(0.5 * level + easy + level * match + luck)))
            cells.append(random.binomial(1, chance).astype(float))
        first, second, third, fourth = cells
        spread = spread_of(cells)
        null = mean_effect([(second, first), (fourth, third)], spread, 2)
        held += null.low <= 0 <= null.high
    assert held >= 0.95 * 200


def test_a_setting_whose_seeds_differ_more_has_the_wider_interval() -> None:
    calm, wild = (
        np.tile(shares(*rows), 10)
        for rows in (([1, 0, 1, 0], [1, 0, 0, 1]), ([1, 1, 1, 0], [0, 1, 0, 0]))
    )
    spread = spread_of([calm, calm, wild])
    steady, unsteady = effect(calm, calm, spread, 2), effect(wild, calm, spread, 2)
    assert unsteady.high - unsteady.low > steady.high - steady.low


def test_one_seed_each_is_the_permutation_test_at_the_corrected_level() -> None:
    own, base = shares([1.0] * 9 + [0.0] * 3), shares([0.0] * 9 + [1.0] + [0.0] * 2)
    differences = tuple((own - base)[0].tolist())
    alone, one_of_four = (effect(own, base, spread_of([base, own]), m) for m in (1, 4))
    test, strict = paired(differences), paired(differences, 0.05 / 4)
    assert (alone.low, alone.high, alone.p_value) == (test.low, test.high, test.p_value)
    # nine won, one lost: 2 (1 + 10) / 2^10 = .0215 alone; four times that for four comparisons
    assert one_of_four.p_value == pytest.approx(4 * 22 / 1024)
    assert (one_of_four.low, one_of_four.high) == (strict.low, strict.high)
    assert alone.low > 0 >= one_of_four.low
    assert alone.method == "paired permutation test"
    assert (alone.more_seeds, alone.more_problems) == (None, None)
    assert one_of_four.more_seeds is None
    assert one_of_four.more_problems is not None


def test_equal_answers_do_not_make_the_interval_a_point() -> None:
    same = shares([1.0] * 40)
    found = effect(same, same, spread_of([same, same]), 1)
    # two half problems, one won and one lost: variance 1 / (41 * 42); of 39 degrees 30
    half = t_quantile(0.95, 30) * math.sqrt(1 / (41 * 42))
    assert (found.difference, found.p_value) == (0.0, 1.0)
    assert (found.low, found.high) == pytest.approx((-half, half))


def test_more_seeds_are_asked_for_where_seeds_make_the_interval_wide() -> None:
    random = np.random.default_rng(0)
    lucky = [
        np.array([random.random(400) < share for share in runs], float)
        for runs in ((0.5, 0.6, 0.4), (0.6, 0.75, 0.5))
    ]
    (by_seeds,) = effects(lucky)
    assert by_seeds.p_value > 0.05
    assert by_seeds.more_seeds is not None
    assert by_seeds.more_problems is None
    steady = [np.tile((random.random(60) < share).astype(float), (3, 1)) for share in (0.5, 0.6)]
    (by_problems,) = effects(steady)
    assert by_problems.p_value > 0.05
    assert by_problems.more_problems is not None


SWEEPS = st.integers(2, 4).flatmap(
    lambda seeds: st.integers(3, 12).flatmap(
        lambda problems: st.lists(
            st.lists(
                st.lists(st.sampled_from((0.0, 0.5, 1.0)), min_size=problems, max_size=problems),
                min_size=seeds,
                max_size=seeds,
            ),
            min_size=2,
            max_size=4,
        )
    )
)


@given(SWEEPS)
def test_an_interval_leaves_0_out_exactly_when_the_corrected_p_is_below_5_percent(
    sweep: list[list[list[float]]],
) -> None:
    for found in effects([np.array(one) for one in sweep]):
        assert found.low <= found.difference <= found.high
        assert (found.low > 0 or found.high < 0) == (found.p_value < 0.05)


@pytest.mark.parametrize(
    "case",
    [
        Case(2, 3, 60, 4, 0.6),
        Case(4, 1, 40, seed_spread=0),
    ],
)
def test_the_intervals_of_a_sweep_hold_at_once_as_often_as_they_say(case: Case) -> None:
    held, _ = coverage(case, 200, seed=1)
    # 95 % of 200, less three standard errors of 1.54 points
    assert held >= 0.95 - 3 * 0.0154


def test_what_rounding_leaves_of_equal_shares_is_no_difference() -> None:
    # Of three problems .1 and .2 are right more, and .3 less: in floats 5.6e-17 is left of that.
    left, right = np.array([[0.1, 0.2, 0.0]] * 2), np.array([[0.0, 0.0, 0.3]] * 2)
    assert (left - right)[0].sum() != 0
    assert effect(left, right, spread_of([left, right]), 1).difference == 0
