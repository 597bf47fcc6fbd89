"""Series of the compared runs: stored in full, smoothed over every value, then cut to pixels.

The axis is steps, tokens, or seconds without pauses. Smoothing is the debiased moving average s_t =
m_t / (1 - b^t), m_t = b m_{t-1} + (1 - b) x_t over the finite values; NaN and infinity are gaps.
"""

import math
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grpo_tui.app.feed.series import few
from grpo_tui.experiments.compare import statistics
from grpo_tui.experiments.values import RunSummary

SMOOTHINGS = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99)
BLOCK = 128

Numbers = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]


def alike(steps: "array[int]", others: "array[int]") -> bool:
    """Whether both are the same gapless sequence of steps."""
    return (
        len(steps) == len(others)
        and steps[0] == others[0]
        and steps[-1] == others[-1]
        and steps[-1] - steps[0] + 1 == len(steps)
    )


@dataclass(frozen=True, slots=True)
class Work:
    """Cumulative tokens and seconds at each step of a run."""

    steps: "array[int]"
    tokens: "array[int]"
    elapsed: "array[float]"

    def positions(self, steps: "array[int]", axis: str) -> "array[int] | array[float]":
        """Positions of these steps on an axis; steps without recorded work take the last value."""
        if axis == "step":
            return steps
        amounts: array[int] | array[float] = self.tokens if axis == "tokens" else self.elapsed
        if alike(steps, self.steps):
            return amounts
        places = (bisect_right(self.steps, step) for step in steps)
        return array("d", (float(amounts[place - 1]) if place else 0.0 for place in places))


@dataclass(frozen=True, slots=True)
class Track:
    """One metric of one run; `average` is the smoothing state after `count` numbers."""

    steps: "array[int]"
    values: "array[float]"
    smooth: "array[float]"
    smoothing: float
    average: float
    count: int
    gaps: int

    @property
    def sparse(self) -> bool:
        """Whether only some steps have a value, as with evaluations; then it is not smoothed."""
        return not self.steps or few(len(self.steps), self.steps[-1] - self.steps[0] + 1)

    def at(self, positions: Sequence[float], x: float) -> tuple[float | None, int | None]:
        """The last number up to a position on the axis, and its step."""
        place = _last_number(self.values, bisect_right(positions, x))
        return (None, None) if place is None else (self.values[place], self.steps[place])


def _last_number(values: Sequence[float], upto: int) -> int | None:
    return next((place for place in reversed(range(upto)) if math.isfinite(values[place])), None)


def track(
    steps: Sequence[int], values: Sequence[float], smoothing: float, before: Track | None = None
) -> Track:
    """Smooth a series, continuing from the end of `before` if given."""
    raw = np.asarray(values, dtype=float)
    known = np.isfinite(raw)
    average, count = (before.average, before.count) if before else (0.0, 0)
    smooth = np.full(len(raw), np.nan)
    smooth[known], average = _smoothed(raw[known], smoothing, average, count)
    finite = int(known.sum())
    new = Track(
        steps if isinstance(steps, array) else array("q", steps), array("d", raw.tobytes()),
        array("d", smooth.tobytes()), smoothing, average, count + finite, len(raw) - finite,
    )  # fmt: skip
    if before is None:
        return new
    return Track(
        before.steps + new.steps, before.values + new.values, before.smooth + new.smooth,
        smoothing, new.average, new.count, before.gaps + new.gaps,
    )  # fmt: skip


def _smoothed(
    values: Numbers, smoothing: float, average: float, count: int
) -> tuple[Numbers, float]:
    """The debiased averages after `count` earlier values, and the resulting average.

    Each block of values is multiplied by a triangular matrix of powers of b. The previous block's
    last average, times a power of b, is added to each value.
    """
    if not smoothing or not len(values):
        return values, average
    size = min(BLOCK, len(values))
    blocks = np.zeros((-(-len(values) // size), size))
    blocks.ravel()[: len(values)] = values
    powers = smoothing ** np.arange(size + 1)
    distance = np.abs(np.subtract.outer(np.arange(size), np.arange(size)))
    triangle = np.tril(powers[distance])
    averages = blocks @ ((1.0 - smoothing) * triangle.T)
    begin = average
    for block in averages:
        block += begin * powers[1:]
        begin = block[-1]
    found = averages.ravel()[: len(values)].copy()
    last = float(found[-1])
    found /= 1.0 - smoothing ** np.arange(count + 1, count + 1 + len(values))
    return found, last


def span_of(ends: dict[str, float], runs: Sequence[RunSummary], axis: str) -> float:
    """The right end of the axis: the longest run, with room for runs that are still growing.

    It grows in a few large steps, so that curves do not wobble.
    """
    longest = 0.0
    for run in runs:
        end = ends[run.id]
        if run.active:
            planned = end * run.total_steps / run.step if run.step else end
            room = 1.0
            while room < end:
                room *= 1.5
            end = max(end, min(room, planned) if axis == "step" else room)
        longest = max(longest, end)
    return longest or 1.0


@dataclass(frozen=True, slots=True)
class Shape:
    """A curve cut to pixel columns: each has its raw range and smoothed value; NaN is a gap."""

    columns: "array[int]"
    low: "array[float]"
    high: "array[float]"
    smooth: "array[float]"
    sparse: bool
    lost: int = 0


def shape(
    line: Track, positions: Sequence[float], span: float, wide: int, *, log: bool = False,
    first: float = 0.0,
) -> Shape:  # fmt: skip
    """Cut a curve to `wide` columns over `span` of the axis from `first`, values in the nearest."""
    places = np.asarray(positions, dtype=float)
    inside = slice(*np.searchsorted(places, (first, np.nextafter(first + span, np.inf))))
    columns = ((places[inside] - first) * (wide - 1) / span + 0.5).astype(int)
    starts = np.flatnonzero(np.diff(columns, prepend=-1))
    if not len(starts):
        return Shape(array("q"), array("d"), array("d"), array("d"), line.sparse)
    raw = np.frombuffer(line.values)[inside]
    raw = np.where(np.isfinite(raw), raw, np.nan)
    low, high = np.fmin.reduceat(raw, starts), np.fmax.reduceat(raw, starts)
    mean = raw if line.sparse else np.frombuffer(line.smooth)[inside]
    # the last number in each column, or its first gap
    last = np.maximum.reduceat(np.where(np.isfinite(mean), np.arange(len(mean)), 0), starts)
    last = np.maximum(last, starts)
    found = Shape(
        array("q", columns[starts].tolist()), array("d", low.tolist()), array("d", high.tolist()),
        array("d", mean[last].tolist()), line.sparse,
    )  # fmt: skip
    return logarithmic(found) if log else found


def logarithmic(curve: Shape) -> Shape:
    """The curve's base-10 logarithms; values not above 0 become gaps and are counted."""
    low, high, smooth = (
        array("d", (math.log10(v) if v > 0 else math.nan for v in values))
        for values in (curve.low, curve.high, curve.smooth)
    )
    for place, value in enumerate(low):
        if math.isnan(value):
            low[place] = high[place]
    lost = sum(value <= 0 for value in curve.low)
    return Shape(curve.columns, low, high, smooth, curve.sparse, lost)


def band(members: Sequence[Shape], limits: tuple[float, float] = (-math.inf, math.inf)) -> Shape:
    """Mean of several seeds as the smoothed line, its 95% confidence interval as the range.

    The interval is cut at the limits of the values. Between its own columns a seed counts as its
    straight line; a single seed has no interval.
    """
    columns = np.unique(np.concatenate([np.asarray(m.columns, dtype=int) for m in members]))
    heights = np.array([_heights(member, columns) for member in members])
    kept, low, high, smooth = array("q"), array("d"), array("d"), array("d")
    for column, values in zip(columns.tolist(), heights.T, strict=True):
        there = values[np.isfinite(values)].tolist()
        if not there:
            continue
        mean, _ = statistics.mean_and_std(there)
        least, most = statistics.mean_interval(there, limits=limits)
        kept.append(column)
        low.append(mean if least is None else least)
        high.append(mean if most is None else most)
        smooth.append(mean)
    return Shape(kept, low, high, smooth, all(member.sparse for member in members))


def _heights(member: Shape, columns: Places) -> Numbers:
    """The height of a curve's line in each column; NaN in gaps and beyond its ends."""
    own, values = np.asarray(member.columns, dtype=int), np.asarray(member.smooth, dtype=float)
    found: Numbers = np.interp(columns, own, values, left=np.nan, right=np.nan)
    found[np.searchsorted(columns, own)] = values
    return found
