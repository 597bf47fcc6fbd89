"""Curves of stored runs: what is read, and how far their axis reaches."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from grpo_tui.app.charts.stored import CurveLoader, CurveRequest
from grpo_tui.experiments.reader import StoreReader
from tests.app.stored import record, run_events


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a run of five steps."""
    path = tmp_path_factory.mktemp("store") / "runs.db"
    record(path, run_events(steps=5, seed=1), seed=1)
    return path


@pytest.fixture
def reader(store: Path) -> Iterator[StoreReader]:
    with StoreReader(store) as opened:
        yield opened


@pytest.mark.parametrize("axis", ["step", "tokens", "wall"])
def test_the_axis_ends_where_the_longest_run_does(reader: StoreReader, axis: str) -> None:
    (run, *_) = reader.runs()
    live = replace(run, status="running", total_steps=500)
    request = CurveRequest(runs=(live,), metrics=("reward",), axis=axis, smoothing=0, wide=40)
    amount = {"step": run.step, "tokens": run.tokens, "wall": run.elapsed}[axis]
    assert CurveLoader().charts(reader, request).span == pytest.approx(amount)


def test_a_series_of_a_run_that_has_ended_is_read_once(
    reader: StoreReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = reader.runs()
    request = CurveRequest(
        runs=runs, metrics=("reward", "no/such"), axis="tokens", smoothing=0.9, wide=40
    )
    loader = CurveLoader()
    charts = loader.charts(reader, request)
    series = charts.charts["reward"].series[runs[0].id]
    assert tuple(series.values) == reader.metric_series(1, "reward").values
    at = charts.charts["reward"].positions[runs[0].id]
    assert list(at) == [step.tokens for step in reader.steps(1)]
    assert charts.charts["no/such"].traces == {}
    rough = loader.charts(reader, replace(request, smoothing=0.0)).charts["reward"]
    raw = rough.series[runs[0].id]
    assert (raw.average, raw.values) == (series.values, series.values)
    reads: list[str] = []
    monkeypatch.setattr(reader, "metric_series", lambda *_, **__: reads.append("metric"))
    monkeypatch.setattr(reader, "steps", lambda *_, **__: reads.append("steps"))
    again = loader.charts(reader, request).charts
    assert again["reward"].series[runs[0].id] is series
    assert reads == []


def test_a_series_is_read_again_after_a_resume(reader: StoreReader) -> None:
    (run,) = reader.runs()
    request = CurveRequest(runs=(run,), metrics=("reward",), axis="step", smoothing=0.9, wide=40)
    loader = CurveLoader()
    first = loader.charts(reader, request).charts["reward"].series[run.id]
    for later in (replace(run, attempts=run.attempts + 1), replace(run, step=3)):
        charts = loader.charts(reader, replace(request, runs=(later,))).charts
        again = charts["reward"].series[run.id]
        assert list(again.values) == list(first.values)
