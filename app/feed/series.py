"""Metric series of bounded size: smooth every value on arrival, keep buckets of steps.

Every value passes through a debiased moving average, s_t = m_t / (1 - b^t) with m_t = b m_{t-1} +
(1 - b) x_t; a bucket keeps the range of the raw values and the average at its end. Bucket edges are
at absolute steps, so that a curve does not wobble as it grows.
"""

import math
from array import array
from bisect import bisect_right
from dataclasses import dataclass

MOST_BUCKETS = 2048
SMOOTHING = 0.9
DELTA_STEPS = 10
EVALUATIONS = "eval/"
FRESH = 2 * DELTA_STEPS  # values: those of the last steps, and of as many before
RECENT = 2048  # values; a checkpoint to resume from is more recent than that


@dataclass(frozen=True, slots=True)
class SeriesView:
    """One metric as charts draw it; bucket i holds the steps i*width to (i+1)*width - 1.

    `low` and `high` are NaN in a bucket without values, inf and -inf in one without finite values.
    """

    width: int
    first: int
    low: "array[float]"
    high: "array[float]"
    smooth: "array[float]"
    count: int
    last_step: int
    last: float
    value: float
    delta: float
    sparse: bool
    recent: tuple[float, ...] = ()  # the newest finite values, at most `FRESH`

    @property
    def start(self) -> float:
        """The first value, where the average begins; NaN if there is none."""
        return next((value for value in self.smooth if not math.isnan(value)), math.nan)

    def steps(self) -> range:
        """Return the first step of each bucket."""
        start = self.first // self.width * self.width
        return range(start, start + len(self.low) * self.width, self.width)


class Series:
    """Collects one metric's values in at most `MOST_BUCKETS` buckets.

    The newest values are also kept unaggregated, in case the run is resumed from an earlier step.
    A series of which `few` values are expected is sparse however many come.
    """

    def __init__(self, smoothing: float = SMOOTHING, *, few: bool = False) -> None:
        self._smoothing, self._few = smoothing, few
        self._clear()

    def _clear(self) -> None:
        self._width = 1
        self._first = -1
        self._low, self._high, self._smooth = array("d"), array("d"), array("d")
        self._steps, self._values, self._averages = array("q"), array("d"), array("d")
        self._average = 0.0
        self._pushed = self._count = 0
        self._last = math.nan
        self._last_step = -1
        self._view: SeriesView | None = None

    def push(self, step: int, value: float) -> None:
        """Add the value of a step; steps must not decrease, NaN is a gap."""
        self._view = None
        if self._first < 0:
            self._first = step
        self._last_step = step
        while self._place(step) >= MOST_BUCKETS:
            self._halve()
        self._grow(self._place(step) + 1)
        self._pushed += 1
        if math.isfinite(value):
            self._average = self._smoothing * self._average + (1 - self._smoothing) * value
            self._count += 1
            self._last = value
            self._draw(step, value, self._smoothed(self._average, self._count))
        else:
            self._draw_gap(step)
        self._keep(step, value)

    def forget_after(self, step: int) -> None:
        """Drop everything after a step from which the run was resumed.

        Beyond the newest `RECENT` values, the curve stays and the average restarts.
        """
        if step >= self._last_step:
            return
        if step < self._first:
            self._clear()
            return
        self._view = None
        span, self._last_step = self._last_step - self._first + 1, step
        keep = bisect_right(self._steps, step)
        if keep:
            self._average = self._averages[keep - 1]
            self._count -= _finite(self._values[keep:])
            self._pushed -= len(self._steps) - keep
        else:
            self._average = 0.0
            self._count = 0
            self._pushed = self._pushed * (step - self._first + 1) // span
        for kept in (self._steps, self._values, self._averages):
            del kept[keep:]
        self._last = next(filter(math.isfinite, reversed(self._values)), math.nan)
        for drawn in (self._low, self._high, self._smooth):
            del drawn[self._place(step) :]
        self._grow(self._place(step) + 1)
        count = self._count - _finite(self._values)
        for kept_step, value, average in zip(
            self._steps, self._values, self._averages, strict=True
        ):
            if math.isfinite(value):
                count += 1
                self._draw(kept_step, value, self._smoothed(average, count))
            else:
                self._draw_gap(kept_step)

    def _place(self, step: int) -> int:
        return step // self._width - self._first // self._width

    def _smoothed(self, average: float, count: int) -> float:
        return average / (1 - self._smoothing**count) if count else math.nan

    def _keep(self, step: int, value: float) -> None:
        if len(self._steps) >= 2 * RECENT:
            for kept in (self._steps, self._values, self._averages):
                del kept[:RECENT]
        self._steps.append(step)
        self._values.append(value)
        self._averages.append(self._average)

    def _draw(self, step: int, value: float, smooth: float) -> None:
        place = self._place(step)
        self._low[place] = _least(self._low[place], value)
        self._high[place] = -_least(-self._high[place], -value)
        self._smooth[place] = smooth

    def _draw_gap(self, step: int) -> None:
        place = self._place(step)
        self._low[place] = _least(self._low[place], math.inf)
        self._high[place] = -_least(-self._high[place], math.inf)

    def view(self) -> SeriesView:
        """Return the current series; the same object while no value was added."""
        if self._view is None:
            span = self._last_step - self._first + 1
            value = self._smoothed(self._average, self._count)
            sparse = self._few or few(self._pushed, span)
            self._view = SeriesView(
                width=self._width, first=self._first, low=self._low[:],
                high=self._high[:], smooth=self._smooth[:], count=self._count,
                last_step=self._last_step, last=self._last,
                value=self._last if sparse else value, sparse=sparse,
                delta=self._change() if sparse else self._delta(value),
                recent=tuple(filter(math.isfinite, self._values))[-FRESH:],
            )  # fmt: skip
        return self._view

    def _change(self) -> float:
        """The last value minus the one before."""
        known = [value for value in self._values if math.isfinite(value)]
        return known[-1] - known[-2] if len(known) > 1 else math.nan

    def _delta(self, value: float) -> float:
        back = len(self._smooth) - 1 - max(1, DELTA_STEPS // self._width)
        return value - self._smooth[back] if back >= 0 else math.nan

    def _grow(self, length: int) -> None:
        missing = length - len(self._low)
        for kept in (self._low, self._high, self._smooth):
            kept.extend([math.nan] * missing)

    def _halve(self) -> None:
        odd = self._first // self._width % 2
        self._width *= 2
        low, high, smooth = array("d"), array("d"), array("d")
        places = range(-odd, len(self._low), 2)
        for place in places:
            pair = [i for i in (place, place + 1) if 0 <= i < len(self._low)]
            low.append(_least(*(self._low[i] for i in pair)))
            high.append(-_least(*(-self._high[i] for i in pair)))
            ends = [self._smooth[i] for i in pair if math.isfinite(self._smooth[i])]
            smooth.append(ends[-1] if ends else math.nan)
        self._low, self._high, self._smooth = low, high, smooth


def series_of(key: str, smoothing: float = SMOOTHING) -> Series:
    """An empty series of a metric; evaluations are few, so they are never smoothed."""
    return Series(0.0, few=True) if key.startswith(EVALUATIONS) else Series(smoothing)


def few(count: int, span: int) -> bool:
    """Whether at least half of the steps have no value; then lines join the values as they are."""
    return 2 * count <= span + 1


def _finite(values: "array[float]") -> int:
    return sum(map(math.isfinite, values))


def _least(*values: float) -> float:
    finite = [value for value in values if not math.isnan(value)]
    return min(finite) if finite else math.nan
