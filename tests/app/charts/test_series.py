"""Series: the moving average, resumes, and curves cut to pixels and pooled in bands."""

import math
from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_tui.app.charts.series import (
    RECENT,
    SMOOTHINGS,
    PixelColumn,
    Series,
    Trace,
    band,
    column,
    cut,
    positions,
)

VALUES = st.lists(st.one_of(st.just(math.nan), st.floats(-9, 9)), max_size=20)


def series(
    values: Sequence[float], smoothing: float = 0.9, first: int = 1, key: str = "reward"
) -> Series:
    return Series.of(key, range(first, first + len(values)), values, smoothing)


def at(steps: Sequence[int], values: Sequence[float], smoothing: float = 0.9) -> Series:
    return Series.of("reward", steps, values, smoothing)


def whole(one: Series, wide: int, first: float = 0.0) -> Trace:
    """The curve over all steps from 0 on."""
    return cut(one, one.steps, one.last_step - first, wide, first)


def numbers(one: Series) -> list[float]:
    """A series as numbers that pytest can compare, including NaN."""
    return [
        one.last_step,
        one.last,
        one.value,
        one.delta,
        one.count,
        one.sparse,
        one.start,
        *one.steps,
        *one.values,
        *one.average,
        *one.recent,
    ]


def test_the_average_is_debiased_and_steps_over_gaps() -> None:
    one = series([1.0, 2.0, math.nan, math.inf, 4.0])
    # m = .9(.9(.1*1) + .1*2) + .1*4 = .661 and 1 - .9^3 = .271
    assert one.value == pytest.approx(0.661 / 0.271)
    assert one.average[0] == 1.0
    assert all(map(math.isnan, one.average[2:4]))
    assert one.count == 3
    # m = .5 * 1 = .5, weight .5 -> 1; m = .5 * .5 + .5 * 4 = 2.25, weight .75 -> 3
    assert list(series([1.0, 4.0], 0.5).average) == [1.0, 3.0]
    assert SMOOTHINGS[0] == 0
    assert list(SMOOTHINGS) == sorted({value for value in SMOOTHINGS if value < 1})


@given(VALUES, VALUES)
def test_a_series_that_goes_on_equals_one_read_at_once(
    before: list[float], after: list[float]
) -> None:
    parts = series(before).extended(range(len(before) + 1, len(before) + len(after) + 1), after)
    assert numbers(parts) == pytest.approx(numbers(series([*before, *after])), nan_ok=True)


@given(VALUES, VALUES, st.integers(0, 21))
def test_a_resumed_series_is_the_one_that_never_took_the_dropped_steps(
    before: list[float], after: list[float], step: int
) -> None:
    kept = min(step, len(before))
    resumed, plain = series(before).until(step), series(before[:kept])
    assert numbers(resumed) == pytest.approx(numbers(plain), nan_ok=True)
    steps = range(kept + 1, kept + len(after) + 1)
    resumed, plain = resumed.extended(steps, after), plain.extended(steps, after)
    assert numbers(resumed) == pytest.approx(numbers(plain), nan_ok=True)


def test_a_series_is_sparse_where_at_least_half_of_its_steps_have_no_value() -> None:
    for steps, expected in (
        ([0, 4, 8, 12], True),
        ([1, 3, 5], True),
        ([4], True),
        ([], True),
        ([1, 2, 3], False),
        ([0, 2, 4, 5], False),
    ):
        assert at(steps, [1.0] * len(steps)).sparse is expected, steps
    assert not series([1.0, math.nan, math.nan, math.nan, 2.0]).sparse


def test_evaluations_are_never_smoothed_however_many_come() -> None:
    one = series([0.0, 1.0, 0.5], key="eval/accuracy")
    assert one.sparse
    assert (one.value, one.delta) == (0.5, 0.5)  # since the first one
    assert list(one.line) == [0.0, 1.0, 0.5]
    assert not series([0.0, 1.0, 0.5]).sparse
    assert math.isnan(series([0.5], key="eval/accuracy").delta)


def test_the_change_is_over_ten_steps() -> None:
    values = [float(k * k) for k in range(12)]
    assert math.isnan(series(values[:10], 1e-9).delta)
    assert series(values[:11], 1e-9).delta == pytest.approx(100.0)
    assert series(values, 1e-9).delta == pytest.approx(120.0)


def test_a_series_without_values_has_no_steps() -> None:
    one = series([])
    assert (one.last_step, one.count, one.recent) == (-1, 0, ())
    assert all(map(math.isnan, (one.start, one.last, one.value, one.delta)))
    assert numbers(one.until(0)) == pytest.approx(numbers(one), nan_ok=True)


def test_the_recent_values_are_the_newest_finite_ones() -> None:
    values = [math.nan if step % 3 == 0 else float(step) for step in range(1, 100)]
    known = [value for value in values if math.isfinite(value)]
    assert series(values).recent == tuple(known[-RECENT:])
    assert series([math.inf, 2.0]).recent == (2.0,)


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (9, (None, None)),
        (29, (None, None)),
        (30, (4.0, 3)),
        (35, (4.0, 3)),
        (50, (4.0, 3)),
        (60, (1.0, 6)),
        (99, (1.0, 6)),
    ],
)
def test_the_crosshair_reads_the_last_number_up_to_it(
    x: float, expected: tuple[float | None, int | None]
) -> None:
    one = series([math.nan, math.inf, 4.0, math.nan, -math.inf, 1.0], 0.5)
    assert one.at([10, 20, 30, 40, 50, 60], x) == expected
    assert series([5.0]).at([10], 10) == (5.0, 1)


def test_steps_are_where_their_tokens_and_seconds_are() -> None:
    known, tokens, seconds = (
        array("q", [1, 2, 3]),
        array("d", [10, 30, 60]),
        array("d", [1, 2.5, 4]),
    )
    assert list(positions(array("q", [1, 2, 3]), known, tokens)) == [10, 30, 60]
    assert list(positions(array("q", [0, 2, 5]), known, seconds)) == [0.0, 2.5, 4.0]
    assert list(positions(array("q", [0, 2, 5]), known, tokens)) == [0, 30, 60]


# -- pixels -------------------------------------------------------------------------------------


@given(
    st.lists(st.floats(-10, 10), min_size=4, max_size=60),
    st.integers(0, 50),
    st.integers(2, 60),
    st.integers(2, 40),
)
def test_a_part_of_the_axis_has_the_columns_of_its_steps(
    values: list[float], first: int, length: int, wide: int
) -> None:
    one = series(values, first=0)
    trace = cut(one, one.steps, length, wide, first)
    inside: dict[int, list[int]] = {}
    for step in one.steps:
        if first <= step <= first + length:
            inside.setdefault(column(step - first, length, wide), []).append(step)
    assert [item.x for item in trace.columns] == list(inside)
    for item, steps in zip(trace.columns, inside.values(), strict=True):
        known = [values[step] for step in steps]
        assert (item.low, item.high) == (min(known), max(known))
        assert item.end == one.line[steps[-1]]  # the average still knows the values before


def test_a_band_is_the_mean_and_its_95_percent_interval() -> None:
    traces = [whole(series([value, value], 0.0, first=0), 2) for value in (1.0, 2.0, 3.0)]
    columns = band(traces).columns
    assert [item.line for item in columns] == [(2.0,), (2.0,)]
    # mean 2, standard deviation 1, t(.95, 2) = 4.303: half width 4.303 / sqrt(3) = 2.484
    assert columns[0].high - 2.0 == pytest.approx(2.484, abs=1e-3)
    assert 2.0 - columns[1].low == pytest.approx(2.484, abs=1e-3)
    assert band(traces, (1.0, 2.5)).columns[0] == PixelColumn(0, 1.0, 2.5, (2.0,))


def test_a_band_is_sparse_if_all_of_its_seeds_are() -> None:
    sparse, dense = at([0, 9], [1.0, 2.0]), series([1.0] * 10, first=0)
    for members, expected in (([sparse, sparse], True), ([sparse, dense], False)):
        assert band([whole(one, 4) for one in members]).sparse is expected


def test_a_band_has_a_gap_where_all_of_its_seeds_have_one() -> None:
    traces = [whole(series([1.0, math.nan, math.nan, math.nan, 2.0], 0.0, first=0), 5)] * 2
    assert band(traces).columns == (
        PixelColumn(0, 1.0, 1.0, (1.0,)),
        PixelColumn(4, 2.0, 2.0, (2.0,)),
    )


def test_a_seed_counts_as_its_straight_line_up_to_its_end() -> None:
    long, short = at([0, 2, 4], [0.0, 1.0, 4.0]), at([0, 4], [2.0, 4.0])
    traces = [cut(one, one.steps, 4, 5) for one in (long, short)]
    assert [item.line for item in band(traces).columns] == [(1.0,), (2.0,), (4.0,)]
    ended = cut(at([0], [3.0]), array("q", [0]), 4, 5)
    last = band([traces[0], ended]).columns[-1]
    assert last == PixelColumn(4, 4.0, 4.0, (4.0,))  # one seed has no interval
