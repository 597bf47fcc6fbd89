"""The paired test: its interval and its p-value are one method, and keep their promise."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_tui.experiments.compare.effects import paired

SHARES = st.integers(0, 8).map(lambda right: right / 8)
PAIRS = st.lists(st.tuples(SHARES, SHARES), min_size=2, max_size=60)


@settings(max_examples=60, deadline=None)
@given(pairs=PAIRS)
def test_zero_is_outside_the_interval_exactly_when_p_is_below_5_percent(
    pairs: list[tuple[float, float]],
) -> None:
    found = paired(tuple(one - other for one, other in pairs))
    outside = found.low > 0 or found.high < 0
    assert outside == (found.p_value < 0.05)
    assert found.low <= found.difference + 1e-9
    assert found.difference <= found.high + 1e-9


@settings(max_examples=60, deadline=None)
@given(gained=st.integers(0, 20), lost=st.integers(0, 20), same=st.integers(0, 80))
def test_with_one_answer_each_it_is_mcnemars_exact_test(gained: int, lost: int, same: int) -> None:
    found = paired((1.0,) * gained + (-1.0,) * lost + (0.0,) * same)
    n, k = gained + lost, min(gained, lost)
    # both tails of binomial(n, 1/2)
    tails = min(1.0, 2 * sum(math.comb(n, i) for i in range(k + 1)) / 2**n) if n else 1.0
    assert found.p_value == pytest.approx(tails)


def test_splits_that_are_counted_and_splits_that_are_drawn_agree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    differences = (0.5,) * 9 + (-0.5,) * 4 + (0.25,) * 6 + (0.0,) * 30
    counted = paired(differences)
    monkeypatch.setattr("grpo_tui.experiments.compare.effects.MAX_SPLITS", 0)
    drawn = paired.__wrapped__(differences)
    assert drawn.p_value == pytest.approx(counted.p_value, abs=0.01)
    assert (drawn.low, drawn.high) == pytest.approx((counted.low, counted.high), abs=0.01)


def simulated(gain: float, samples: int, problems: int, runs: int) -> tuple[float, float]:
    """How often the interval holds the true gain, and how often it excludes 0.

    Each problem has its own chance to be answered; the better setting adds `gain` to it.
    """
    rng = np.random.default_rng(7)
    holds = excludes = 0
    for _ in range(runs):
        chance = rng.uniform(0.0, 1.0 - gain, problems)
        base = rng.binomial(samples, chance) / samples
        better = rng.binomial(samples, chance + gain) / samples
        found = paired(tuple((better - base).tolist()))
        holds += found.low <= gain <= found.high
        excludes += found.low > 0 or found.high < 0
    return holds / runs, excludes / runs


@pytest.mark.slow
@pytest.mark.parametrize("samples", [1, 8])
@pytest.mark.parametrize("gain", [0.0, 0.25])
def test_95_of_100_intervals_hold_the_truth_and_5_of_100_alarms_are_false(
    gain: float, samples: int
) -> None:
    covered, excluded = simulated(gain, samples, problems=60, runs=400 if samples == 1 else 150)
    # a share of 5 % of 400 has a standard deviation of 1.1 %, of 150 one of 1.8 %
    assert 0.92 <= covered <= 0.985
    if gain == 0:
        assert 0.015 <= excluded <= 0.08
    else:
        assert excluded > 0.5
