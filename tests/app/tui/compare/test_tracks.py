"""Curves of compared runs: smoothing, axis positions, pixels, bands, and live growth."""

import math
import random
from array import array
from dataclasses import replace
from pathlib import Path

import pytest

from app.feed.series import Series
from app.tui.screens.compare.load import CurveLoader, CurveRequest
from app.tui.screens.compare.tracks import Work, band, shape, span_of, track
from experiments.reader import StoreReader
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


def test_a_band_is_the_mean_and_its_95_percent_interval() -> None:
    lines = [track([0, 1], [value, value], 0.0) for value in (1.0, 2.0, 3.0)]
    found = band([shape(line, line.steps, 1, 2) for line in lines])
    # mean 2, standard deviation 1, t(.95, 2) = 4.303: half width 4.303 / sqrt(3) = 2.484
    assert found.smooth.tolist() == [2.0, 2.0]
    assert found.high[0] - 2.0 == pytest.approx(2.484, abs=1e-3)
    assert 2.0 - found.low[1] == pytest.approx(2.484, abs=1e-3)


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
