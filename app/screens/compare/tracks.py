"""Series of the compared runs: whole, smoothed over every value, then cut to the chart's pixels.

A run is placed on the axis by its steps, its tokens or its seconds without pauses. Smoothing is
the debiased moving average s_t = m_t / (1 - b^t), m_t = b m_{t-1} + (1 - b) x_t over the finite
values; NaN and infinity are gaps.
"""

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from app.series import SeriesView
from experiments import stats

SMOOTHINGS = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99)
SPARSE = 4


@dataclass(frozen=True, slots=True)
class Work:
    """How many tokens and seconds each step of a run had behind it."""

    steps: "array[int]"
    tokens: "array[int]"
    elapsed: "array[float]"

    def positions(self, steps: "array[int]", axis: str) -> "array[int] | array[float]":
        """Where these steps lie on an axis; a step without work of its own has that before it."""
        if axis == "step":
            return steps
        amounts: array[int] | array[float] = self.tokens if axis == "tokens" else self.elapsed
        if steps == self.steps:
            return amounts
        places = (bisect_right(self.steps, step) for step in steps)
        return array("d", (float(amounts[place - 1]) if place else 0.0 for place in places))


@dataclass(frozen=True, slots=True)
class Track:
    """One metric of one run; `average` over `count` numbers is where its smoothing stands."""

    steps: "array[int]"
    values: "array[float]"
    smooth: "array[float]"
    smoothing: float
    average: float
    count: int
    gaps: int

    @property
    def sparse(self) -> bool:
        """Whether only some steps have a value, as with evaluations: such a curve is not bent."""
        return not self.steps or SPARSE * len(self.steps) <= self.steps[-1] - self.steps[0] + 1

    def at(self, positions: Sequence[float], x: float) -> tuple[float | None, int | None]:
        """The last number up to a place of the axis, and its step."""
        place = bisect_right(positions, x) - 1
        while place >= 0 and math.isnan(self.values[place]):
            place -= 1
        return (self.values[place], self.steps[place]) if place >= 0 else (None, None)

    def smooth_at(self, positions: Sequence[float], x: float) -> float | None:
        """The smoothed value at a place of the axis."""
        place = bisect_right(positions, x) - 1
        while place >= 0 and math.isnan(self.smooth[place]):
            place -= 1
        return self.smooth[place] if place >= 0 else None


def track(
    steps: Sequence[int], values: Sequence[float], smoothing: float, before: Track | None = None
) -> Track:
    """A series smoothed, or one that goes on where `before` ends."""
    whole = math.isfinite(sum(values))
    finite = values if whole else [value for value in values if math.isfinite(value)]
    average, count = (before.average, before.count) if before else (0.0, 0)
    smooth, average = _smoothed(finite, smoothing, average, count)
    if not whole:
        known = iter(smooth)
        smooth = array("d", (next(known) if math.isfinite(v) else math.nan for v in values))
    new = Track(
        array("q", steps), array("d", values), smooth, smoothing, average, count + len(finite),
        len(values) - len(finite),
    )  # fmt: skip
    if before is None:
        return new
    return Track(
        before.steps + new.steps, before.values + new.values, before.smooth + new.smooth,
        smoothing, new.average, new.count, before.gaps + new.gaps,
    )  # fmt: skip


def _smoothed(
    values: Sequence[float], smoothing: float, average: float, count: int
) -> "tuple[array[float], float]":
    """The debiased averages after `count` earlier values, and the average as it stands."""
    if not smoothing or not values:
        return array("d", values), average
    share = 1.0 - smoothing
    averages = accumulate(values, lambda m, x: smoothing * m + share * x, initial=average)
    smooth = array("d", averages)
    del smooth[0]
    last = smooth[-1]
    weight = 1.0 - smoothing**count
    for place, value in enumerate(smooth):
        weight = smoothing * weight + share
        if weight > 1.0 - 1e-14:
            break
        smooth[place] = value / weight
    return smooth, last


@dataclass(frozen=True, slots=True)
class Shape:
    """A curve cut to pixel columns: the raw range and the smoothed value in each; NaN is a gap."""

    columns: "array[int]"
    low: "array[float]"
    high: "array[float]"
    smooth: "array[float]"
    sparse: bool
    lost: int = 0

    @property
    def view(self) -> SeriesView:
        """The same values as the watch charts' limits take them."""
        return SeriesView(
            width=1, first=0, low=self.low, high=self.high,
            smooth=array("d") if self.sparse else self.smooth, count=len(self.low), last_step=0,
            last=math.nan, value=math.nan, delta=math.nan, sparse=self.sparse,
        )  # fmt: skip


def shape(
    line: Track, positions: Sequence[float], span: float, wide: int, *, log: bool = False
) -> Shape:
    """Cut a curve to `wide` columns over an axis from 0 to `span`."""
    columns, low, high, smooth = array("q"), array("d"), array("d"), array("d")
    start, end = 0, len(positions)
    while start < end:
        column = min(wide - 1, int(positions[start] * wide / span))
        edge = (column + 1) * span / wide
        stop = max(start + 1, bisect_left(positions, edge, start)) if column < wide - 1 else end
        raw = line.values[start:stop]
        mean = raw if line.sparse else line.smooth[start:stop]
        if line.gaps:
            raw = array("d", (value for value in raw if math.isfinite(value)))
            mean = array("d", (value for value in mean if value == value))
        columns.append(column)
        low.append(min(raw) if raw else math.nan)
        high.append(max(raw) if raw else math.nan)
        smooth.append(mean[-1] if mean else math.nan)
        start = stop
    found = Shape(columns, low, high, smooth, line.sparse)
    return logarithmic(found) if log else found


def logarithmic(curve: Shape) -> Shape:
    """The curve's logarithms to base 10; what is not above 0 becomes a gap and is counted."""
    low, high, smooth = (
        array("d", (math.log10(v) if v > 0 else math.nan for v in values))
        for values in (curve.low, curve.high, curve.smooth)
    )
    for place, value in enumerate(low):
        if math.isnan(value) and not math.isnan(high[place]):
            low[place] = high[place]
    lost = sum(value <= 0 for value in curve.low)
    return Shape(curve.columns, low, high, smooth, curve.sparse, lost)


@lru_cache(maxsize=64)
def _t(freedom: int) -> float:
    return stats.t_quantile(0.95, freedom)


def band(members: Sequence[Shape]) -> Shape:
    """Mean of several seeds as the smoothed line, its 95 % confidence interval as the range.

    A column counts the seeds that have a value there; with one alone there is no interval.
    """
    by_column: dict[int, list[float]] = {}
    for member in members:
        for column, value in zip(member.columns, member.smooth, strict=True):
            if value == value:
                by_column.setdefault(column, []).append(value)
    columns, low, high, smooth = array("q"), array("d"), array("d"), array("d")
    for column, values_there in sorted(by_column.items()):
        mean, std = stats.mean_and_std(values_there)
        count = len(values_there)
        half = _t(count - 1) * std / math.sqrt(count) if std is not None else 0.0
        columns.append(column)
        low.append(mean - half)
        high.append(mean + half)
        smooth.append(mean)
    return Shape(columns, low, high, smooth, all(member.sparse for member in members))
