"""Curves of stored runs: read once, extended while a run is active, and cut to pixels.

Everything runs on the reader thread.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grpo_engine.metrics import natural_range
from grpo_tui.app.charts.series import Series, Trace, Work, axis_end, band, cut, logarithmic
from grpo_tui.experiments.values import RunSummary

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader

MOST_VALUES = 3_000_000  # cached for series that are not visible


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveRequest:
    """Metrics of runs, as charts of so many pixel columns show them."""

    runs: tuple[RunSummary, ...]
    metrics: tuple[str, ...]
    axis: str
    smoothing: float
    log: bool
    wide: int
    window: tuple[float, float] | None = None  # of the axis; None is all of it
    seeds: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCurve:
    """One run's curve: each value with its position on the axis, and its pixels."""

    run: str
    series: Series
    positions: Sequence[float]
    trace: Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartData:
    """The curves of one metric, and the runs that never recorded it."""

    key: str
    curves: tuple[StoredCurve, ...]
    missing: tuple[str, ...]
    bands: tuple[tuple[tuple[str, ...], Trace], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Charts:
    """All charts, with the request they answer."""

    request: CurveRequest
    first: float = 0.0
    span: float
    ends: dict[str, float]
    charts: tuple[ChartData, ...]


@dataclass(frozen=True, slots=True)
class _Cached:
    """A series of a run as it was read after some step of an attempt."""

    attempts: int
    step: int
    series: Series


class CurveLoader:
    """The series and the work of the requested runs."""

    def __init__(self) -> None:
        self._cached: dict[tuple[int, str], _Cached] = {}
        self._work: dict[tuple[int, int], Work] = {}  # by run and attempt

    def charts(self, reader: "StoreReader", request: CurveRequest) -> Charts:
        """Return the requested charts."""
        self._forget(request)
        charts = {
            key: {run.id: self._series(reader, run, key, request) for run in request.runs}
            for key in request.metrics
        }
        if request.axis != "step":
            self._work = {
                (run.key, run.attempts): self._read_work(reader, run) for run in request.runs
            }
        ends = {run.id: self._end(run, charts, request.axis) for run in request.runs}
        first, last = request.window or (0.0, axis_of_runs(ends, request.runs, request.axis))
        return Charts(request=request, first=first, span=last - first, ends=ends, charts=tuple(
            self._chart(key, series, request, first, last - first)
            for key, series in charts.items()
        ))  # fmt: skip

    def _forget(self, request: CurveRequest) -> None:
        """Drop series of other runs, and those that are not visible once they are many."""
        runs = {run.key for run in request.runs}
        full = sum(len(item.series.steps) for item in self._cached.values()) > MOST_VALUES
        self._cached = {(run, key): item for (run, key), item in self._cached.items()
                        if run in runs and (key in request.metrics or not full)}  # fmt: skip

    def _series(
        self, reader: "StoreReader", run: RunSummary, key: str, request: CurveRequest
    ) -> Series:
        empty = Series.of(key, smoothing=request.smoothing)
        cached = self._cached.get((run.key, key))
        if cached is None or cached.attempts != run.attempts or cached.step > run.step:
            cached = _Cached(run.attempts, -1, empty)
        series = cached.series
        if series.smoothing != empty.smoothing:
            series = empty.extended(series.steps, series.values)
        if run.active or cached.step != run.step:
            added = reader.metric_series(run.key, key, after=series.last_step)
            series = series.extended(added.steps, added.values)
        self._cached[run.key, key] = _Cached(run.attempts, run.step, series)
        return series

    def _read_work(self, reader: "StoreReader", run: RunSummary) -> Work:
        empty = Work(array("q"), array("q"), array("d"))
        current = self._work.get((run.key, run.attempts), empty)
        after = current.steps[-1] if current.steps else -1
        if after == run.step and not run.active:
            return current
        steps, tokens, elapsed = reader.work(run.key, after=after)
        return Work(current.steps + array("q", steps), current.tokens + array("q", tokens),
                    current.elapsed + array("d", elapsed))  # fmt: skip

    def _end(self, run: RunSummary, charts: dict[str, dict[str, Series]], axis: str) -> float:
        if axis == "step":
            return float(
                max(run.step, *(series[run.id].last_step for series in charts.values()), 0)
            )
        work = self._work[run.key, run.attempts]
        amounts: Sequence[float] = work.tokens if axis == "tokens" else work.elapsed
        return float(amounts[-1]) if amounts else 0.0

    def _chart(
        self, key: str, series: dict[str, Series], request: CurveRequest, first: float, span: float
    ) -> ChartData:
        traces, curves, missing = {}, [], []
        for run in request.runs:
            line = series[run.id]
            if not line.steps:
                missing.append(run.id)
                continue
            positions: Sequence[float] = line.steps
            if request.axis != "step":
                positions = self._work[run.key, run.attempts].positions(line.steps, request.axis)
            trace = traces[run.id] = cut(line, positions, span, request.wide, first)
            trace = logarithmic(trace) if request.log else trace
            curves.append(StoredCurve(run=run.id, series=line, positions=positions, trace=trace))
        bands = []
        for group in request.seeds:
            if members := [traces[run] for run in group if run in traces]:
                mean = band(members, natural_range(key))
                bands.append((group, logarithmic(mean) if request.log else mean))
        return ChartData(key=key, curves=tuple(curves), missing=tuple(missing), bands=tuple(bands))


def axis_of_runs(ends: dict[str, float], runs: Sequence[RunSummary], axis: str) -> float:
    """The right end of the axis: the longest run, with room for runs that are still growing."""
    longest = 0.0
    for run in runs:
        end = ends[run.id]
        if run.active:
            current = axis == "step" and run.total_steps
            end = max(end, axis_end(end, run.total_steps if current else float("inf")))
        longest = max(longest, end)
    return longest or 1.0
