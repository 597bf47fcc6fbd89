"""Intervals and pass@k against hand calculations."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_engine.evaluation.statistics import (
    bootstrap,
    pass_at_k,
    pass_at_ks,
    share_with_interval,
    wilson,
)


def test_wilson_interval_of_eight_in_ten() -> None:
    # z² = 3.8415: middle (.8 + .19207)/1.38415 = .71674,
    # half 1.95996·sqrt(.016 + 3.8415/400)/1.38415 = .22656
    assert wilson(8, 10) == pytest.approx((0.49016, 0.94330), abs=2e-5)


@pytest.mark.parametrize("right", [0, 10])
def test_wilson_interval_stays_inside_zero_and_one(right: int) -> None:
    low, high = wilson(right, 10)
    assert 0 <= low < high <= 1


def test_pass_at_k_is_the_mean_over_all_draws() -> None:
    samples = [1, 1, 0, 0, 0]
    draws = list(combinations(samples, 3))
    expected = sum(any(draw) for draw in draws) / len(draws)  # 9 of 10 draws contain a right one
    assert pass_at_k(5, 2, 3) == pytest.approx(expected)
    assert pass_at_k(5, 0, 5) == 0
    assert pass_at_k(5, 3, 3) == 1


def test_bootstrap_interval_holds_the_mean_and_repeats() -> None:
    values = [0.0, 0.25, 0.5, 1.0] * 25
    low, high = bootstrap(values)
    # standard error .3720/10 = .0372: about .4375 ± .073
    assert low == pytest.approx(0.4375 - 0.073, abs=0.01)
    assert high == pytest.approx(0.4375 + 0.073, abs=0.01)
    assert bootstrap(values) == (low, high)


def test_samples_of_one_problem_do_not_narrow_the_interval() -> None:
    _, (low, high) = share_with_interval([(8, 8)] * 10 + [(0, 8)] * 10)
    assert high - low > 0.35  # as wide as for 20 coin tosses, not for 160


def test_pass_at_ks_are_powers_of_two_and_all() -> None:
    names = ["eval/pass@2", "eval/pass@4", "eval/pass@6"]
    assert list(pass_at_ks([(1, 6), (2, 6)], largest=6)) == names
    assert pass_at_ks([(1, 1)], largest=1) == {}


def test_samples_that_were_not_judged_are_in_no_share() -> None:
    # 2 of 4, 1 of 2 (two not judged) and 0 of 1: (.5 + .5 + 0) / 3
    counts = [(2, 4), (1, 2), (0, 1)]
    assert share_with_interval(counts)[0] == 1 / 3
    # of two samples: 1 - C(2, 2)/C(4, 2) = 5/6, and 1 - 0 = 1; the third problem has one
    passed = pass_at_ks(counts, largest=4)
    assert passed["eval/pass@2"] == pytest.approx((5 / 6 + 1) / 2)
    # of four: only the first problem has them, and one of them is right for sure
    assert passed["eval/pass@4"] == 1.0


@given(st.lists(st.integers(0, 7), min_size=1, max_size=40))
def test_with_all_samples_judged_the_share_is_that_of_all_to_the_bit(right: list[int]) -> None:
    share, _ = share_with_interval([(count, 7) for count in right])
    assert share == sum(right) / (7 * len(right))
