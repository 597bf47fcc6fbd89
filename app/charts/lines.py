"""Whole curves for figures and pages: of a stored run, or the mean over a setting's seeds."""

import math
from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from grpo_engine.frozen import frozen
from grpo_engine.metrics import natural_range
from grpo_tui.app.charts.series import EVALUATIONS, SMOOTHING, PixelColumn, Series, Trace, band
from grpo_tui.experiments.values import RunSummary

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader

Runs = Sequence[RunSummary]  # one run, or the seeds of a setting


@frozen
class Curve:
    """A curve by step, tokens or time.

    `recorded` is what `values` may smooth: of several seeds their mean, NaN where it is not known.
    From `low` to `high` is the 95 % interval, or else the recorded value.
    """

    steps: Sequence[float]
    values: Sequence[float]
    recorded: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]

    @classmethod
    def of_band(
        cls, columns: Sequence[PixelColumn], recorded: Sequence[float], scale: float = 1
    ) -> "Curve":
        """The mean of several seeds with its interval; `scale` is the width of a column."""
        return cls(
            steps=[item.x * scale for item in columns],
            values=[item.end for item in columns],
            recorded=recorded,
            low=[item.low for item in columns],
            high=[item.high for item in columns],
        )

    @property
    def has_interval(self) -> bool:
        """Whether low and high are an interval; NaN, which equals nothing, is none."""
        return any(low < high for low, high in zip(self.low, self.high, strict=True))


def curve_of(
    reader: "StoreReader", runs: Runs, key: str, smoothing: float = SMOOTHING
) -> Curve | None:
    """The curve of a metric; None if none of the runs has a number of it."""
    all_series = [series_of(reader, run, key, smoothing) for run in runs]
    present = [series for series in all_series if series.count]
    if not present:
        return None
    if len(runs) > 1:
        columns = band([_trace(s, s.line) for s in present], natural_range(key)).columns
        recorded = band([_trace(s, s.values) for s in present]).columns
        return Curve.of_band(columns, [item.end for item in recorded])
    return with_ends(key, present[0], lambda end: series_of(reader, runs[0], end, 0.0))


def series_of(reader: "StoreReader", run: RunSummary, key: str, smoothing: float) -> Series:
    """A metric of a stored run."""
    stored = reader.metric_series(run.key, key)
    return Series.of(key, stored.steps, stored.values, smoothing)


def _trace(series: Series, values: Sequence[float]) -> Trace:
    """A column for each step, so that a band has the values themselves."""
    points = zip(series.steps, values, strict=True)
    return Trace(tuple(PixelColumn(step, value, value, (value,)) for step, value in points))


def with_ends(key: str, series: Series, read: Callable[[str], Series]) -> Curve:
    """The curve of a series; `read` gives the ends of a held-out metric's interval by their key.

    Where there are none, they are the recorded values.
    """
    ends = {"low": series.values, "high": series.values}
    for end in ends if key.startswith(EVALUATIONS) else ():
        stored = read(f"{key}_{end}")
        if by_step := dict(zip(stored.steps, stored.values, strict=True)):
            ends[end] = array("d", (by_step.get(step, math.nan) for step in series.steps))
    return Curve(steps=series.steps, values=series.line, recorded=series.values, **ends)
