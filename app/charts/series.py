"""Metric series as charts draw them: every value with its moving average, then cut to pixels.

The average is debiased, s_t = m_t / (1 - b^t) with m_t = b m_{t-1} + (1 - b) x_t over the finite
values; NaN and infinity are gaps. It is taken over all values before any are left out.
"""

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from statistics import fmean

from grpo_tui.experiments.compare.statistics import mean_interval

SMOOTHING = 0.9
SMOOTHINGS = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99)
DELTA_STEPS = 10
RECENT = 2 * DELTA_STEPS  # values: those of the last steps, and of as many before
EVALUATIONS = "eval/"


@dataclass(frozen=True, slots=True)
class Series:
    """All values of a metric; `extended` and `until` return another series."""

    steps: "array[int]" = field(default_factory=lambda: array("q"))
    values: "array[float]" = field(default_factory=lambda: array("d"))
    average: "array[float]" = field(default_factory=lambda: array("d"))
    smoothing: float = SMOOTHING
    count: int = 0  # finite values
    mean: float = 0.0  # the average before it is debiased

    @classmethod
    def of(
        cls,
        key: str,
        steps: Iterable[int] = (),
        values: Iterable[float] = (),
        smoothing: float = SMOOTHING,
    ) -> "Series":
        """The series of a metric; evaluations are not smoothed."""
        empty = cls(smoothing=0.0 if key.startswith(EVALUATIONS) else smoothing)
        return empty.extended(steps, values)

    def extended(self, steps: Iterable[int], values: Iterable[float]) -> "Series":
        """This series with later values; steps must not decrease."""
        added, averages = array("d", values), array("d")
        decay, count, mean = self.smoothing, self.count, self.mean
        for value in added:
            if math.isfinite(value):
                count += 1
                mean = decay * mean + (1 - decay) * value
                averages.append(mean / (1 - decay**count))
            else:
                averages.append(math.nan)
        return replace(
            self,
            steps=self.steps + array("q", steps),
            values=self.values + added,
            average=self.average + averages,
            count=count,
            mean=mean,
        )

    def until(self, step: int) -> "Series":
        """This series without what comes after a step."""
        end = bisect_right(self.steps, step)
        return Series(smoothing=self.smoothing).extended(self.steps[:end], self.values[:end])

    @property
    def sparse(self) -> bool:
        """Whether lines join the values as they are: at least half of the steps have none."""
        steps = self.steps
        return not (self.smoothing and steps) or 2 * len(steps) <= steps[-1] - steps[0] + 2

    @property
    def line(self) -> "array[float]":
        """The values that the curve goes through."""
        return self.values if self.sparse else self.average

    @property
    def first_step(self) -> int:
        """The step of the first value; -1 if there is none."""
        finite = (
            at for at, value in zip(self.steps, self.values, strict=True) if math.isfinite(value)
        )
        return next(finite, -1)

    @property
    def last_step(self) -> int:
        """The last step; -1 if there is none."""
        return self.steps[-1] if self.steps else -1

    @property
    def start(self) -> float:
        """The first value; NaN if there is none."""
        return next(filter(math.isfinite, self.values), math.nan)

    @property
    def last(self) -> float:
        """The last value, as it was recorded."""
        return _last_finite(self.values)

    @property
    def value(self) -> float:
        """The end of the curve."""
        return _last_finite(self.line)

    @property
    def overall(self) -> float:
        """The mean of all values; NaN if there is none."""
        return fmean(filter(math.isfinite, self.values)) if self.count else math.nan

    @property
    def delta(self) -> float:
        """The curve's change over ten steps; of a sparse one since its first value, as on Runs."""
        if self.sparse:
            return self.value - self.start if len(self.recent) > 1 else math.nan
        before = bisect_right(self.steps, self.last_step - DELTA_STEPS)
        return self.value - self.average[before - 1] if before else math.nan

    @property
    def recent(self) -> tuple[float, ...]:
        """The newest finite values, at most `RECENT`."""
        newest = islice(filter(math.isfinite, reversed(self.values)), RECENT)
        return tuple(newest)[::-1]

    def line_at(self, step: int) -> tuple[float, int]:
        """The curve's last number up to a step, and the step that it is of."""
        index = _last_index(self.line, bisect_right(self.steps, step))
        return (math.nan, step) if index is None else (self.line[index], self.steps[index])

    def at(self, positions: Sequence[float], x: float) -> tuple[float | None, int | None]:
        """The last number up to a position on the axis, and its step."""
        index = _last_index(self.values, bisect_right(positions, x))
        return (None, None) if index is None else (self.values[index], self.steps[index])


def _last_index(values: Sequence[float], end: int) -> int | None:
    """Where the last number before an index is."""
    return next((i for i in reversed(range(end)) if math.isfinite(values[i])), None)


def _last_finite(values: Sequence[float]) -> float:
    return next(filter(math.isfinite, reversed(values)), math.nan)


def positions(
    steps: "array[int]", recorded: "array[int]", amounts: "array[float]"
) -> "array[float]":
    """Where steps are on an axis of tokens or seconds; an unknown one is at the last before it."""
    if steps == recorded:
        return amounts
    ends = (bisect_right(recorded, step) for step in steps)
    return array("d", (amounts[end - 1] if end else 0.0 for end in ends))


# -- pixels -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PixelColumn:
    """What a curve has in a column of pixels: the range of its values, and where its line goes.

    NaN is a gap.
    """

    x: int
    low: float
    high: float
    line: tuple[float, ...]

    @property
    def end(self) -> float:
        """Where the line leaves the column."""
        return _last_finite(self.line)


@dataclass(frozen=True, slots=True)
class Trace:
    """A curve cut to pixel columns."""

    columns: tuple[PixelColumn, ...] = ()
    sparse: bool = False

    def logarithmic(self) -> "Trace":
        """The curve of the decimal logarithms; numbers that have none are gaps."""
        columns = (
            PixelColumn(
                item.x,
                logarithm(item.low if item.low > 0 else item.high),
                logarithm(item.high),
                tuple(map(logarithm, item.line)),
            )
            for item in self.columns
        )
        return replace(self, columns=tuple(columns))


def logarithm(value: float) -> float:
    """The decimal logarithm; NaN for 0, negative numbers and NaN."""
    return math.log10(value) if value > 0 else math.nan


def column(position: float, end: float, wide: int) -> int:
    """The pixel nearest to a position on an axis from 0 to `end`, of `wide` pixels."""
    return max(0, min(wide - 1, int(position * (wide - 1) / end + 0.5))) if end > 0 else 0


def cut(
    series: Series, positions: Sequence[float], span: float, wide: int, first: float = 0.0
) -> Trace:
    """Cut a curve to `wide` columns over `span` of the axis from `first`."""
    values, line = series.values, series.line
    start, stop = bisect_left(positions, first), bisect_right(positions, first + span)
    columns = []
    while start < stop:
        x = column(positions[start] - first, span, wide)
        end = bisect_left(
            positions, x + 1, start, stop, key=lambda position: column(position - first, span, wide)
        )
        finite = [value for value in values[start:end] if math.isfinite(value)]
        columns.append(
            PixelColumn(
                x,
                min(finite, default=math.nan),
                max(finite, default=math.nan),
                _turns(line[start:end]),
            )
        )
        start = end
    return Trace(tuple(columns), series.sparse)


def _turns(values: "array[float]") -> tuple[float, ...]:
    """One column's part of a line, with at most four of many values: they cover the same pixels."""
    points = tuple(value if math.isfinite(value) else math.nan for value in values)
    if len(points) <= 4:
        return points
    finite = [value for value in points if value == value]
    return (finite[0], min(finite), max(finite), finite[-1]) if finite else (math.nan,)


def band(traces: Sequence[Trace], limits: tuple[float, float] = (-math.inf, math.inf)) -> Trace:
    """Mean of several seeds as the line, its 95% confidence interval as the range.

    The interval is cut at the limits of the values. Between its columns a seed counts as its
    straight line; a single seed has no interval.
    """
    import numpy as np

    xs = sorted({item.x for trace in traces for item in trace.columns})
    lines = [
        np.interp(
            xs,
            [item.x for item in trace.columns],
            [item.end for item in trace.columns],
            left=math.nan,
            right=math.nan,
        ).tolist()
        for trace in traces
    ]
    columns = []
    for x, *ends in zip(xs, *lines, strict=True):
        finite = [end for end in ends if math.isfinite(end)]
        if finite:
            mean = fmean(finite)
            low, high = mean_interval(finite, limits=limits)
            if low is None or high is None:
                low = high = mean
            columns.append(PixelColumn(x, low, high, (mean,)))
    return Trace(tuple(columns), all(trace.sparse for trace in traces))
