"""Curves of stored runs, read again while a run is active, and cut to pixels.

Everything runs on the reader thread.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Any

from grpo_engine.frozen import frozen
from grpo_engine.metrics import natural_range
from grpo_tui.app.charts.lines import series_of
from grpo_tui.app.charts.series import Series, Trace, band, cut, positions
from grpo_tui.experiments.compare.runs import AMOUNTS
from grpo_tui.experiments.values import RunSummary

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader

Work = tuple["array[int]", "array[float]"]  # steps, and the tokens or seconds up to each


@frozen
class CurveRequest:
    """Metrics of runs, as charts of so many pixel columns show them."""

    runs: tuple[RunSummary, ...]
    metrics: tuple[str, ...]
    axis: str
    smoothing: float
    wide: int
    seeds: tuple[tuple[str, ...], ...] = ()


@frozen
class ChartData:
    """The curves of one metric, by run: values, and their positions on the axis."""

    series: Mapping[str, Series]
    positions: Mapping[str, Sequence[float]]
    traces: Mapping[tuple[str, ...], Trace]  # keyed by a run, or by the seeds of a band


@frozen
class Charts:
    """The charts by metric, of so many pixel columns; none until they have been read."""

    wide: int = 0
    span: float = 0.0  # the axis begins at 0
    charts: Mapping[str, ChartData] = field(default_factory=dict)


class CurveLoader:
    """Reads curves of runs; those of a run that has ended once."""

    def __init__(self) -> None:
        # by run, attempt and content: the step after which it was read, and the value
        self._cache: dict[tuple[int, int, str], tuple[int, Any]] = {}

    def charts(self, reader: "StoreReader", request: CurveRequest) -> Charts:
        """Return the requested charts."""
        runs, axis = request.runs, request.axis
        current = {(run.key, run.attempts) for run in runs}
        self._cache = {key: item for key, item in self._cache.items() if key[:2] in current}
        metrics = {
            key: {run.id: self._series(reader, run, key, request.smoothing) for run in runs}
            for key in request.metrics
        }
        ends = {
            run.id: float(
                max(run.step, 0, *(lines[run.id].last_step for lines in metrics.values()))
            )
            for run in runs
        }
        work = {} if axis == "step" else {run.id: self._work(reader, run, axis) for run in runs}
        ends |= {run: amounts[-1] if amounts else 0.0 for run, (_, amounts) in work.items()}
        span = max(ends.values(), default=0.0) or 1.0
        charts = {key: _chart(key, lines, request, work, span) for key, lines in metrics.items()}
        return Charts(wide=request.wide, span=span, charts=charts)

    def _series(self, reader: "StoreReader", run: RunSummary, key: str, smoothing: float) -> Series:
        read = partial(series_of, reader, run, key, smoothing)
        series: Series = self._read(run, f"{key} {smoothing}", read)
        return series

    def _work(self, reader: "StoreReader", run: RunSummary, axis: str) -> Work:
        ends = self._read(run, "", lambda: reader.steps(run.key))
        amounts = (getattr(end, AMOUNTS[axis]) for end in ends)
        return array("q", (end.step for end in ends)), array("d", amounts)

    def _read(self, run: RunSummary, name: str, read: Callable[[], Any]) -> Any:
        index = run.key, run.attempts, name
        if run.active or self._cache.get(index, (-1,))[0] != run.step:
            self._cache[index] = run.step, read()
        return self._cache[index][1]


def _chart(
    key: str,
    series: Mapping[str, Series],
    request: CurveRequest,
    work: Mapping[str, Work],
    span: float,
) -> ChartData:
    at = {
        run: positions(line.steps, *work[run]) if work else line.steps
        for run, line in series.items()
    }
    traces: dict[tuple[str, ...], Trace] = {
        (run,): cut(line, at[run], span, request.wide) for run, line in series.items() if line.steps
    }
    for group in request.seeds:
        if members := [traces[run,] for run in group if (run,) in traces]:
            traces[group] = band(members, natural_range(key))
    return ChartData(series=series, positions=at, traces=traces)
