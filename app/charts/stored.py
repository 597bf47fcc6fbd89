"""Curves of stored runs: read once, extended while a run is active, and cut to pixels.

Everything runs on the reader thread.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grpo_engine.metrics import natural_range
from grpo_tui.app.charts.series import (
    Series,
    Trace,
    axis_end,
    band,
    cut,
    positions,
)
from grpo_tui.experiments.compare.runs import AMOUNTS
from grpo_tui.experiments.values import RunSummary

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader

Amounts = tuple["array[int]", "array[float]"]  # steps, and the tokens or seconds up to each


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveRequest:
    """Metrics of runs, as charts of so many pixel columns show them."""

    runs: tuple[RunSummary, ...]
    metrics: tuple[str, ...]
    axis: str
    smoothing: float
    wide: int
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
    """The curves of one metric; runs that never recorded it have none."""

    key: str
    curves: tuple[StoredCurve, ...]
    bands: tuple[tuple[tuple[str, ...], Trace], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Charts:
    """All charts, with the request they answer."""

    request: CurveRequest
    span: float  # of the axis, from 0
    charts: tuple[ChartData, ...]


class CurveLoader:
    """Reads curves of runs: once, and then what is new in those that are active."""

    def __init__(self) -> None:
        # by run, attempt and metric or axis, each as it was read after a step
        self._cached: dict[tuple[int, int, str], tuple[int, Series]] = {}
        self._work: dict[tuple[int, int, str], tuple[int, Amounts]] = {}

    def charts(self, reader: "StoreReader", request: CurveRequest) -> Charts:
        """Return the requested charts."""
        runs, axis = request.runs, request.axis
        current = {(run.key, run.attempts) for run in runs}
        self._cached = {key: item for key, item in self._cached.items() if key[:2] in current}
        charts = {
            key: {run.id: self._series(reader, run, key, request.smoothing) for run in runs}
            for key in request.metrics
        }
        ends = {
            run.id: float(max(run.step, 0, *(lines[run.id].last_step for lines in charts.values())))
            for run in runs
        }
        amounts = {} if axis == "step" else {r.id: self._amounts(reader, r, axis) for r in runs}
        ends |= {run: values[-1] if values else 0.0 for run, (_, values) in amounts.items()}
        span = axis_of_runs(ends, runs, axis)
        return Charts(request=request, span=span, charts=tuple(
            _chart(key, series, request, amounts, span) for key, series in charts.items()
        ))  # fmt: skip

    def _series(self, reader: "StoreReader", run: RunSummary, key: str, smoothing: float) -> Series:
        empty = Series.of(key, smoothing=smoothing)
        step, series = self._cached.get((run.key, run.attempts, key), (-1, empty))
        if series.smoothing != empty.smoothing:
            series = empty.extended(series.steps, series.values)
        if run.active or step != run.step:
            added = reader.metric_series(run.key, key, after=series.last_step)
            series = series.extended(added.steps, added.values)
        self._cached[run.key, run.attempts, key] = run.step, series
        return series

    def _amounts(self, reader: "StoreReader", run: RunSummary, axis: str) -> Amounts:
        index = run.key, run.attempts, axis
        if run.active or self._work.get(index, (-1,))[0] != run.step:
            ends = reader.steps(run.key)
            amounts = array("d", (getattr(end, AMOUNTS[axis]) for end in ends))
            self._work[index] = run.step, (array("q", (end.step for end in ends)), amounts)
        return self._work[index][1]


def _chart(
    key: str,
    series: Mapping[str, Series],
    request: CurveRequest,
    amounts: Mapping[str, Amounts],
    span: float,
) -> ChartData:
    traces: dict[str, Trace] = {}
    curves = []
    for run, line in series.items():
        if line.steps:
            at = positions(line.steps, *amounts[run]) if amounts else line.steps
            trace = traces[run] = cut(line, at, span, request.wide)
            curves.append(StoredCurve(run=run, series=line, positions=at, trace=trace))
    bands = []
    for group in request.seeds:
        if members := [traces[run] for run in group if run in traces]:
            bands.append((group, band(members, natural_range(key))))
    return ChartData(key=key, curves=tuple(curves), bands=tuple(bands))


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
