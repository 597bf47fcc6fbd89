"""Curves of compared runs: smoothing, axis positions, pixels, bands, and live growth."""

import math
import random
from array import array
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_tui.app.feed.series import Series
from grpo_tui.app.tui.screens.compare.load import CurveLoader, CurveRequest
from grpo_tui.app.tui.screens.compare.tracks import (
    SMOOTHINGS,
    Track,
    Work,
    alike,
    band,
    shape,
    span_of,
    track,
)
from grpo_tui.experiments.reader import StoreReader
from tests.app.stored import record, run_events


def test_smoothing_is_the_same_as_on_watch() -> None:
    rng = random.Random(1)
    values = [rng.random() for _ in range(300)]
    series = Series(0.9)
    for step, value in enumerate(values):
        series.push(step, value)
    found = track(range(300), values, 0.9)
    assert found.smooth.tolist() == pytest.approx(series.view().smooth.tolist())


def test_two_values_are_smoothed_as_by_hand() -> None:
    # m = .5 * 1 = .5, weight .5 -> 1; m = .5 * .5 + .5 * 4 = 2.25, weight .75 -> 3
    found = track([1, 2], [1.0, 4.0], 0.5)
    assert found.smooth.tolist() == [1.0, 3.0]


def test_a_track_that_goes_on_equals_one_read_at_once() -> None:
    rng = random.Random(2)
    values = [rng.random() if rng.random() > 0.1 else math.nan for _ in range(500)]
    whole = track(range(500), values, 0.95)
    part = track(range(200, 500), values[200:], 0.95, track(range(200), values[:200], 0.95))
    assert part.gaps == whole.gaps
    assert part.smooth.tolist() == pytest.approx(whole.smooth.tolist(), nan_ok=True)


def test_nan_and_infinity_are_gaps_that_smoothing_steps_over() -> None:
    found = track([1, 2, 3, 4], [1.0, math.nan, math.inf, 3.0], 0.0)
    assert found.gaps == 2
    assert found.smooth.tolist()[::3] == [1.0, 3.0]
    assert all(math.isnan(value) for value in found.smooth[1:3])
    assert found.at(found.steps, 2) == (1.0, 1)


def test_pixels_keep_the_extremes_and_each_columns_last_smoothed_value() -> None:
    rng = random.Random(3)
    values = [rng.random() for _ in range(10_000)]
    line = track(range(10_000), values, 0.9)
    cut = shape(line, line.steps, 9999, 100)
    assert cut.columns.tolist() == list(range(100))
    # a column is 101 steps wide: 7 * 101 = 707, and half of 101 on both sides
    assert cut.low[7] == min(values[657:758])
    assert cut.high[7] == max(values[657:758])
    assert cut.smooth[7] == line.smooth[757]
    assert max(cut.high) == max(values)


def test_packed_series_are_the_stored_ones(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    record(path, run_events(steps=5, seed=1), seed=1)
    reader = StoreReader(path)
    for key in ("reward", "eval/greedy/accuracy", "no/such"):
        series = reader.metric_series(1, key)
        steps, values = reader.metric_arrays(1, key)
        assert (tuple(steps), tuple(values)) == (series.steps, series.values)
    assert tuple(reader.metric_arrays(1, "reward", after=3)[0]) == (4, 5)
    assert reader.work(1, after=3)[1] == tuple(step.tokens for step in reader.steps(1, after=3))
    reader.close()


def test_a_sparse_series_is_not_bent() -> None:
    line = track([0, 50, 100], [0.1, 0.9, 0.2], 0.9)
    assert line.sparse
    assert shape(line, line.steps, 100, 50).smooth.tolist() == [0.1, 0.9, 0.2]


def test_a_log_scale_leaves_out_what_has_no_logarithm_and_counts_it() -> None:
    line = track([1, 2, 3], [10.0, 0.0, 1000.0], 0.0)
    cut = shape(line, line.steps, 3, 4, log=True)
    assert cut.lost == 1
    assert [cut.smooth[0], cut.smooth[2]] == [1.0, 3.0]
    assert math.isnan(cut.smooth[1])


@pytest.mark.parametrize(
    ("active", "step", "total", "axis", "end", "expected"),
    [
        (False, 10, 60, "step", 10.0, 10.0),
        # 1.5^5 = 7.6 and 1.5^6 = 11.4: the first that is not below 10
        (True, 10, 60, "step", 10.0, 1.5**6),
        (True, 10, 11, "step", 10.0, 11.0),
        (True, 10, 0, "step", 10.0, 10.0),
        (True, 0, 60, "step", 10.0, 10.0),
        # tokens and seconds to the end are not known
        (True, 10, 11, "tokens", 10.0, 1.5**6),
        (True, 1, 60, "step", 1.0, 1.0),
        (True, 0, 60, "step", 0.0, 1.0),
        (False, 10, 60, "wall", 0.25, 0.25),
        (False, 0, 60, "wall", 0.0, 1.0),
        # an evaluation after the last step
        (True, 10, 10, "step", 10.5, 10.5),
    ],
)
def test_the_axis_of_a_growing_run_has_room_that_grows_by_half(
    tmp_path: Path, active: bool, step: int, total: int, axis: str, end: float, expected: float
) -> None:
    path = tmp_path / "runs.db"
    record(path, run_events(steps=1))
    reader = StoreReader(path)
    run = replace(reader.runs()[0], step=step, total_steps=total,
                  status="running" if active else "completed")  # fmt: skip
    reader.close()
    assert run.active == active
    assert span_of({run.id: end}, [run], axis) == pytest.approx(expected)
    longer = replace(run, id="longer", status="completed")
    assert span_of({run.id: end, "longer": 99.0}, [longer, run], axis) == 99.0


def test_steps_lie_where_their_tokens_and_seconds_are() -> None:
    work = Work(array("q", [1, 2, 3]), array("q", [10, 30, 60]), array("d", [1.0, 2.5, 4.0]))
    assert list(work.positions(array("q", [1, 2, 3]), "tokens")) == [10, 30, 60]
    assert list(work.positions(array("q", [0, 2, 5]), "wall")) == [0.0, 2.5, 4.0]
    assert list(work.positions(array("q", [0, 2, 5]), "tokens")) == [0, 30, 60]
    assert list(work.positions(array("q", [0, 2, 5]), "step")) == [0, 2, 5]


@pytest.mark.parametrize(
    ("steps", "others", "expected"),
    [
        ([3, 4, 5], [3, 4, 5], True), ([3], [3], True), ([3, 4], [3, 4, 5], False),
        ([3, 4], [4, 5], False), ([3, 4, 6], [3, 5, 6], False), ([3, 4, 6], [3, 4, 6], False),
        ([3, 4, 5], [3, 4, 6], False), ([3, 4, 5], [2, 4, 5], False), ([3, 4], [], False),
    ],
)  # fmt: skip
def test_steps_are_alike_if_they_are_the_same_without_a_gap(
    steps: list[int], others: list[int], expected: bool
) -> None:
    assert alike(array("q", steps), array("q", others)) == expected


def test_smoothings_are_weights_from_none_to_nearly_all() -> None:
    assert SMOOTHINGS[0] == 0
    assert SMOOTHINGS[-1] < 1
    assert list(SMOOTHINGS) == sorted(set(SMOOTHINGS))


@pytest.mark.parametrize(
    ("x", "expected"),
    [(9, (None, None)), (10, (None, None)), (29, (None, None)), (30, (4.0, 3)), (35, (4.0, 3)),
     (40, (4.0, 3)), (50, (4.0, 3)), (60, (1.0, 6)), (99, (1.0, 6))],
)  # fmt: skip
def test_the_crosshair_reads_the_last_number_up_to_it(
    x: float, expected: tuple[float | None, int | None]
) -> None:
    line = track(range(1, 7), [math.nan, math.inf, 4.0, math.nan, -math.inf, 1.0], 0.5)
    positions = [10, 20, 30, 40, 50, 60]
    assert line.at(positions, x) == expected
    assert track([1], [5.0], 0.5).at([10], 10) == (5.0, 1)


def test_a_track_is_sparse_where_at_least_half_of_its_steps_have_no_value() -> None:
    assert track([0, 2, 4], [1.0] * 3, 0.9).sparse
    assert track([4], [1.0], 0.9).sparse
    assert not track([10, 12, 14, 15], [1.0] * 4, 0.9).sparse
    assert not track([0, 1, 2], [1.0] * 3, 0.9).sparse


def test_a_column_has_its_last_number_and_without_one_it_is_a_gap() -> None:
    # places 0 to 7 times 3/7: .0 .4 .9 1.3 1.7 2.1 2.6 3, rounded to the columns 0 0 1 1 2 2 3 3
    values = [1.0, math.nan, 3.0, 9.0, math.inf, math.nan, math.nan, 7.0]
    line = track(range(8), values, 0.5)
    cut = shape(line, line.steps, 7, 4)
    assert cut.columns.tolist() == [0, 1, 2, 3]
    assert cut.low.tolist() == pytest.approx([1.0, 3.0, math.nan, 7.0], nan_ok=True)
    assert cut.high.tolist() == pytest.approx([1.0, 9.0, math.nan, 7.0], nan_ok=True)
    smooth = [line.smooth[0], line.smooth[3], math.nan, line.smooth[7]]
    assert cut.smooth.tolist() == pytest.approx(smooth, nan_ok=True)
    assert not cut.sparse
    late = track([1, 2, 3], [1.0, 2.0, 3.0], 0.0)
    assert shape(late, late.steps, 3, 4).columns.tolist() == [1, 2, 3]


def test_a_log_scale_keeps_the_part_of_a_range_that_has_logarithms() -> None:
    line = track(range(6), [-5.0, 100.0, 0.1, 10.0, math.nan, math.nan], 0.0)
    cut = shape(line, line.steps, 5, 3, log=True)  # two values to a column
    assert cut.low.tolist() == pytest.approx([2.0, -1.0, math.nan], nan_ok=True)
    assert cut.high.tolist() == pytest.approx([2.0, 1.0, math.nan], nan_ok=True)
    assert cut.lost == 1
    assert shape(line, line.steps, 5, 3).lost == 0


def test_a_band_is_the_mean_and_its_95_percent_interval() -> None:
    lines = [track([0, 1], [value, value], 0.0) for value in (1.0, 2.0, 3.0)]
    found = band([shape(line, line.steps, 1, 2) for line in lines])
    # mean 2, standard deviation 1, t(.95, 2) = 4.303: half width 4.303 / sqrt(3) = 2.484
    assert found.smooth.tolist() == [2.0, 2.0]
    assert found.high[0] - 2.0 == pytest.approx(2.484, abs=1e-3)
    assert 2.0 - found.low[1] == pytest.approx(2.484, abs=1e-3)


def test_a_band_is_sparse_if_all_of_its_seeds_are() -> None:
    sparse, dense = track([0, 9], [1.0, 2.0], 0.0), track(range(10), [1.0] * 10, 0.0)
    for lines, expected in (([sparse, sparse], True), ([sparse, dense], False)):
        assert band([shape(line, line.steps, 9, 4) for line in lines]).sparse is expected


def test_a_band_has_a_gap_where_all_of_its_seeds_have_one() -> None:
    lines = [track(range(5), [1.0, math.nan, math.nan, math.nan, 2.0], 0.0) for _ in range(2)]
    found = band([shape(line, line.steps, 4, 5) for line in lines])
    assert (found.columns.tolist(), found.smooth.tolist()) == ([0, 4], [1.0, 2.0])
    assert found.low == found.smooth == found.high


def test_where_one_seed_is_left_a_band_has_no_width() -> None:
    long, short = track([0, 1], [1.0, 5.0], 0.0), track([0], [3.0], 0.0)
    found = band([shape(line, line.steps, 1, 2) for line in (long, short)])
    assert (found.smooth[1], found.low[1], found.high[1]) == (5.0, 5.0, 5.0)


def test_the_shaper_reads_a_series_once_and_gives_what_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "runs.db"
    record(path, run_events(steps=5, seed=1), seed=1)
    reader = StoreReader(path)
    runs = reader.runs()
    request = CurveRequest(runs=runs, metrics=("reward", "no/such"), axis="tokens", smoothing=0.9,
                    log=False, wide=40)  # fmt: skip
    loader = CurveLoader()
    first = loader.charts(reader, request)
    curve = first.charts[0].curves[0]
    assert tuple(curve.line.values) == reader.metric_series(1, "reward").values
    assert list(curve.positions) == [step.tokens for step in reader.steps(1)]
    assert first.charts[1].missing == (runs[0].id,)
    asked: list[str] = []

    def ask_again(*_: object, **__: object) -> None:
        asked.append("again")

    monkeypatch.setattr(reader, "metric_arrays", ask_again)
    again = loader.charts(reader, request)
    assert asked == []
    assert again.charts[0].curves[0].shape is curve.shape
    reader.close()


@given(
    st.lists(st.floats(-10, 10), min_size=4, max_size=60),
    st.integers(0, 50), st.integers(2, 60), st.integers(2, 40),
)  # fmt: skip
def test_a_part_of_the_axis_is_drawn_as_a_run_of_only_those_steps_would_be(
    values: list[float], first: int, length: int, wide: int
) -> None:
    """The oracle cuts the steps out by hand; the smoothing still knows the values before."""
    steps = array("q", range(len(values)))
    whole = track(steps, values, 0.9)
    part = shape(whole, steps, length, wide, first=first)
    inside = [step for step in steps if first <= step <= first + length]
    cut = Track(
        array("q", inside), array("d", [whole.values[s] for s in inside]),
        array("d", [whole.smooth[s] for s in inside]), 0.9, 0.0, 0, 0,
    )  # fmt: skip
    wanted = shape(cut, [step - first for step in inside], length, wide)
    assert (part.columns, part.low, part.high) == (wanted.columns, wanted.low, wanted.high)
    assert part.smooth == (wanted.smooth if not cut.sparse or not inside else part.smooth)
