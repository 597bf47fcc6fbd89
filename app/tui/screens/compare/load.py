"""What the Compare screen reads: the comparison, curves, grid, and answers to one prompt.

Everything runs on the reader thread, which also smooths curves and cuts them to pixels.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from grpo_engine.metrics import natural_range
from grpo_tui.app.feed.series import EVALUATIONS
from grpo_tui.app.tui.screens.compare.tracks import (
    Shape,
    Track,
    Work,
    alike,
    band,
    logarithmic,
    shape,
    span_of,
    track,
)
from grpo_tui.experiments.values import RunSummary

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader

MOST_NUMBERS = 3_000_000  # values cached for series that are not shown


# -- curves -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveRequest:
    runs: tuple[RunSummary, ...]
    metrics: tuple[str, ...]
    axis: str
    smoothing: float
    log: bool
    wide: int
    window: tuple[float, float] | None = None  # of the axis; None is all of it
    seeds: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveData:
    """One run's curve: each value with its position on the axis, and its pixels."""

    run: str
    line: Track
    positions: Sequence[float]
    shape: Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartData:
    """The curves of one metric, and the runs that never recorded it."""

    key: str
    curves: tuple[CurveData, ...]
    missing: tuple[str, ...]
    bands: tuple[tuple[tuple[str, ...], Shape], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Charts:
    """All charts, with the request they answer."""

    request: CurveRequest
    first: float = 0.0
    span: float
    ends: dict[str, float]
    charts: tuple[ChartData, ...]


EMPTY_WORK = Work(array("q"), array("q"), array("d"))


@dataclass(slots=True)
class _Known:
    """Cached data of a run; `upto` and `worked` are the run's step at the last read."""

    attempts: int
    step: int = -1
    worked: int = -1
    work: Work = EMPTY_WORK
    tracks: dict[str, Track | None] = field(default_factory=dict)
    upto: dict[str, int] = field(default_factory=dict)
    shapes: dict[tuple[object, ...], Shape] = field(default_factory=dict)


class CurveLoader:
    """Read each series once, extend it while its run is active, and cut it to pixels."""

    def __init__(self) -> None:
        self._runs: dict[int, _Known] = {}

    def charts(self, reader: "StoreReader", request: CurveRequest) -> Charts:
        """Return the requested charts."""
        kept = {run.key for run in request.runs}
        self._runs = {key: known for key, known in self._runs.items() if key in kept}
        for run in request.runs:
            known = self._known(reader, run, request.axis)
            for key in request.metrics:
                self._read(reader, run, known, key, request.smoothing)
        self._forget(set(request.metrics))
        ends = {run.id: self._end(run, request.axis) for run in request.runs}
        first, last = request.window or (0.0, span_of(ends, request.runs, request.axis))
        charts = tuple(self._chart(key, request, first, last - first) for key in request.metrics)
        return Charts(request=request, first=first, span=last - first, ends=ends, charts=charts)

    def _known(self, reader: "StoreReader", run: RunSummary, axis: str) -> _Known:
        known = self._runs.get(run.key)
        if known is None or known.attempts != run.attempts or known.step > run.step:
            known = self._runs[run.key] = _Known(run.attempts)
        if axis != "step" and (known.worked != run.step or run.active):
            after = known.work.steps[-1] if known.work.steps else -1
            steps, tokens, elapsed = reader.work(run.key, after=after)
            known.work = Work(
                known.work.steps + array("q", steps), known.work.tokens + array("q", tokens),
                known.work.elapsed + array("d", elapsed),
            )  # fmt: skip
            known.worked = run.step
        known.step = run.step
        return known

    def _read(
        self, reader: "StoreReader", run: RunSummary, known: _Known, key: str, smoothing: float
    ) -> None:
        line = known.tracks.get(key)
        smoothing = 0.0 if key.startswith(EVALUATIONS) else smoothing
        if line is not None and line.smoothing != smoothing:
            line = track(line.steps, line.values, smoothing)
        elif key in known.upto and known.upto[key] == run.step and not run.active:
            return
        if known.upto.get(key) != run.step or run.active:
            after = line.steps[-1] if line is not None else -1
            steps, values = reader.metric_arrays(run.key, key, after=after)
            if steps:
                line = track(steps, values, smoothing, line)
                same = next((o for o in known.tracks.values() if o and o is not line
                             and alike(o.steps, line.steps)), line)  # fmt: skip
                line = replace(line, steps=same.steps)
        if line is not known.tracks.get(key):
            known.shapes = {cut: shape for cut, shape in known.shapes.items() if cut[0] != key}
        known.tracks[key], known.upto[key] = line, run.step

    def _forget(self, shown: set[str]) -> None:
        """Drop series that are not shown once the cache exceeds its limit."""
        held = [
            (len(line.values), known, key)
            for known in self._runs.values()
            for key, line in known.tracks.items()
            if line is not None
        ]
        total = sum(size for size, _, _ in held)
        for size, known, key in held:
            if total > MOST_NUMBERS and key not in shown:
                del known.tracks[key], known.upto[key]
                total -= size

    def _end(self, run: RunSummary, axis: str) -> float:
        if axis == "step":
            ends = [line.steps[-1] for line in self._runs[run.key].tracks.values() if line]
            return float(max(run.step, *ends)) if ends else float(run.step)
        work = self._runs[run.key].work
        amounts = work.tokens if axis == "tokens" else work.elapsed
        return float(amounts[-1]) if amounts else 0.0

    def _chart(self, key: str, request: CurveRequest, first: float, span: float) -> ChartData:
        curves, missing = [], []
        for run in request.runs:
            known = self._runs[run.key]
            line = known.tracks.get(key)
            if line is None:
                missing.append(run.id)
                continue
            cut = self._cut(known, key, request, first, span, log=request.log)
            positions = known.work.positions(line.steps, request.axis)
            curves.append(CurveData(run=run.id, line=line, positions=positions, shape=cut))
        bands = []
        for group in request.seeds:
            members = [
                self._cut(self._runs[run.key], key, request, first, span, log=False)
                for run in request.runs
                if run.id in group and run.id not in missing
            ]
            if members:
                mean = band(members, natural_range(key))
                bands.append((group, logarithmic(mean) if request.log else mean))
        return ChartData(key=key, curves=tuple(curves), missing=tuple(missing), bands=tuple(bands))

    def _cut(
        self, known: _Known, key: str, request: CurveRequest, first: float, span: float, *,
        log: bool,
    ) -> Shape:  # fmt: skip
        """A curve's pixels."""
        cut = (key, request.axis, log, request.wide, first, span)
        line = known.tracks[key]
        assert line is not None
        if cut not in known.shapes:
            positions = known.work.positions(line.steps, request.axis)
            known.shapes[cut] = shape(line, positions, span, request.wide, log=log, first=first)
        return known.shapes[cut]
