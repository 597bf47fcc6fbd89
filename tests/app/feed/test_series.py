"""Metric series: what their buckets hold, and that a resume leaves nothing of dropped steps."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_tui.app.feed.series import MOST_BUCKETS, RECENT, Series, SeriesView, series_of

VALUES = st.lists(st.one_of(st.just(math.nan), st.floats(-9, 9)), max_size=20)


def pushed(values: list[float], first: int = 1, into: Series | None = None) -> Series:
    series = into or Series()
    for step, value in enumerate(values, first):
        series.push(step, value)
    return series


def numbers(view: SeriesView) -> list[float]:
    """The view as numbers that pytest can compare, including NaN."""
    return [view.width, view.first, view.count, view.last_step, view.last, view.value, view.delta,
            view.sparse, *view.low, *view.high, *view.smooth]  # fmt: skip


def test_the_last_value_after_a_resume_is_the_raw_one() -> None:
    series = pushed([2.0, 8.0, 5.0, 1.0])
    series.forget_after(2)
    view = series.view()
    assert (view.last, view.last_step, view.count) == (8.0, 2, 2)
    # m = .9(.1*2) + .1*8 = .98 and 1 - .9^2 = .19
    assert view.value == pytest.approx(0.98 / 0.19)


def test_a_resume_within_a_bucket_drops_the_later_steps_of_the_bucket() -> None:
    series = pushed([float(step) for step in range(1, 2 * MOST_BUCKETS)])
    assert series.view().width == 2
    series.forget_after(3000)
    view = series.view()
    # the bucket of 3000 and 3001 has lost 3001
    assert (view.last, view.low[-1], view.high[-1]) == (3000.0, 3000.0, 3000.0)
    series.push(3001, 7.0)
    assert (series.view().low[-1], series.view().high[-1]) == (7.0, 3000.0)


def test_further_back_than_the_newest_values_no_last_value_is_made_up() -> None:
    series = pushed([1.0] * 5 * RECENT)
    series.forget_after(RECENT)
    view = series.view()
    assert math.isnan(view.last)
    assert math.isnan(view.value)
    assert view.low[0] == 1.0
    series.push(RECENT + 1, 3.0)
    assert series.view().last == 3.0
    assert series.view().value == pytest.approx(3.0)


@given(VALUES, VALUES, st.integers(0, 21))
def test_a_resumed_series_is_the_one_that_never_took_the_dropped_steps(
    before: list[float], after: list[float], step: int
) -> None:
    kept = min(step, len(before))
    resumed = pushed(before)
    resumed.forget_after(step)
    plain = pushed(before[:kept])
    assert numbers(resumed.view()) == pytest.approx(numbers(plain.view()), nan_ok=True)
    for series in (resumed, plain):
        pushed(after, kept + 1, into=series)
    assert numbers(resumed.view()) == pytest.approx(numbers(plain.view()), nan_ok=True)


def sparse(*steps: int, few: bool = False) -> bool:
    series = Series(few=few)
    for step in steps:
        series.push(step, 1.0)
    return series.view().sparse


def test_a_series_is_sparse_where_at_least_half_of_its_steps_have_no_value() -> None:
    assert sparse(0, 4, 8, 12)
    assert sparse(1, 3, 5)
    assert not sparse(1, 2, 3)
    assert not sparse(0, 2, 4, 5)
    assert sparse(0, 2, 4, 5, few=True)
    gaps = pushed([1.0, math.nan, math.nan, math.nan, 2.0])
    assert not gaps.view().sparse


def test_evaluations_are_never_smoothed_however_many_come() -> None:
    series = pushed([0.0, 1.0, 0.5], into=series_of("eval/accuracy"))
    assert series.view().sparse
    assert (series.view().value, series.view().delta) == (0.5, -0.5)
    assert series.view().smooth.tolist() == [0.0, 1.0, 0.5]
    assert not pushed([0.0, 1.0, 0.5], into=series_of("reward")).view().sparse


@pytest.mark.parametrize(("first", "count"), [(0, 2049), (1, 3000), (7, 9000), (4099, 2048)])
def test_a_bucket_has_the_range_of_its_steps_and_the_average_at_its_end(
    first: int, count: int
) -> None:
    values = [
        math.nan if k % 11 in (0, 3) else math.sin(k * k) for k in range(first, first + count)
    ]
    view = pushed(values, first).view()
    # the fewest steps in a bucket with which 2048 buckets are enough
    width, last = view.width, first + count - 1
    assert last // width - first // width < 2048
    assert width == 1 or 2 * last // width - 2 * first // width >= 2048
    assert view.steps() == range(first // width * width, last + 1, width)
    average, known, averages = 0.0, 0, {}
    for step, value in enumerate(values, first):
        if math.isfinite(value):
            average, known = 0.9 * average + 0.1 * value, known + 1
            averages[step] = average / (1 - 0.9**known)
    assert view.count == known
    for place, start in enumerate(view.steps()):
        steps = [step for step in range(start, start + width) if step in averages]
        inside = [values[step - first] for step in steps]
        assert view.low[place] == min(inside, default=math.inf)
        assert view.high[place] == max(inside, default=-math.inf)
        end = averages[steps[-1]] if steps else math.nan
        assert view.smooth[place] == pytest.approx(end, nan_ok=True)


def test_the_change_is_over_ten_steps_or_a_bucket_if_that_is_more() -> None:
    values = [float(k * k) for k in range(11)]
    assert math.isnan(pushed(values[:10], into=Series(0.0)).view().delta)
    assert pushed(values, into=Series(0.0)).view().delta == 100.0
    assert pushed([*values, 121.0], into=Series(0.0)).view().delta == 120.0
    # 2048 buckets of 16 steps: the last value is compared with the end of the bucket before
    long = pushed([float(k) for k in range(20_000)], 0, into=Series(0.0)).view()
    assert (long.width, long.delta) == (16, 19_999.0 - (19_999 // 16 * 16 - 1))


def test_an_evaluation_alone_has_no_change() -> None:
    assert math.isnan(pushed([0.5], into=series_of("eval/accuracy")).view().delta)


def test_a_series_without_values_has_no_steps() -> None:
    series = Series()
    for _ in range(2):
        view = series.view()
        assert (view.first, view.last_step, view.count, len(view.steps())) == (-1, -1, 0, 0)
        assert all(map(math.isnan, (view.last, view.value, view.delta)))
        series.forget_after(0)


@pytest.mark.parametrize("count", [RECENT + 1, 2 * RECENT + 1, 3 * RECENT + 1])
def test_the_newest_values_are_kept_one_by_one(count: int) -> None:
    series = pushed([float(step) for step in range(1, count + 1)])
    series.forget_after(count - RECENT + 1)
    assert series.view().last == count - RECENT + 1


@pytest.mark.parametrize(("every", "expected"), [(1, False), (2, True), (3, True)])
def test_a_resume_to_before_the_newest_values_keeps_a_series_as_sparse_as_it_was(
    every: int, expected: bool
) -> None:
    first = 50_000
    series = Series()
    for place in range(3 * RECENT):
        series.push(first + every * place, 1.0)
    series.forget_after(first + RECENT // 2)
    assert series.view().sparse == expected
    assert series.view().last_step == first + RECENT // 2
