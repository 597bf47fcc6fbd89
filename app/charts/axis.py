"""Axes of charts: a range with round ends that contains the data, and labels of few cells.

A label is exact: read back, it is the value that it labels. Only the single label of a constant
series is rounded.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import count, dropwhile, takewhile

from grpo_tui.app.text.numbers import MEGABYTES_BELOW, MINUS, clamped

LABEL_CELLS = 6
ALL_FROM = 3  # labels; with more of them, each step of the axis has one
ANY = (-math.inf, math.inf)
NOISE = 1e-9  # relative; averages of equal values differ by less
SMALLEST, LARGEST = 1e-45, 1e60  # smaller sizes are drawn as 0, larger ones not at all
SHIFTS = {"share": 2, "MB": 3}  # powers of ten from a value to its label


@dataclass(frozen=True, slots=True)
class Axis:
    """The values at both ends, and the labelled values from low to high."""

    low: float
    high: float
    labels: tuple[tuple[float, str], ...] = ()

    def dot(self, value: float, tall: int) -> int:
        """The dot nearest to a value, of `tall` dots from the top down to the bottom."""
        dot = round((self.high - value) * (tall - 1) / (self.high - self.low) - 1e-6)
        return clamped(dot, tall)

    def margin(self, height: int) -> list[str]:
        """The label of each row of cells, four dots each; rows without one are blank."""
        rows = [" " * (LABEL_CELLS + 1)] * height
        for value, text in (*self.labels[:1], *self.labels[:0:-1]):
            row = self.dot(value, 4 * height) // 4
            if not rows[row].strip():
                rows[row] = text.rjust(LABEL_CELLS) + " "
        return rows


def axis(
    values: Iterable[float],
    *,
    unit: str = "",
    natural: tuple[float, float] = ANY,
    guides: Sequence[float] = (),
    labels: int = 2,
) -> Axis:
    """Return the axis of these values, with some labels, or one if all values are equal.

    It stays within the `natural` range of the metric unless a value is outside. It includes guide
    lines that are at most three times as high as the data, and 0 where the data is near. More than
    three labels are at equal distances, in round steps.
    """
    finite = [0.0 if abs(value) < SMALLEST else value for value in values if abs(value) <= LARGEST]
    if not finite:
        return Axis(0.0, 1.0)
    low, high = min(finite), max(finite)
    if unit == "GB" and max(abs(low), abs(high)) < MEGABYTES_BELOW:
        unit = "MB"
    if equal(low, high):
        return _constant(high, unit, natural)
    low = 0.0 if 0 <= low <= 0.6 * high else low
    near = [guide for guide in guides if 0 <= guide <= 3 * high]
    ends = _round_ends(min([low, *near]), max([high, *near]), unit, natural, labels)
    last = len(ends) - 1
    marks = [ends[round(last * part / (labels - 1))] for part in range(labels)]
    if labels > ALL_FROM:
        marks = ends
    elif not texts(marks, unit):
        marks = [ends[0], ends[-1]]
    at = [float(mark) for mark in marks]
    return Axis(at[0], at[-1], tuple(zip(at, texts(marks, unit), strict=True)))


def equal(low: float, high: float) -> bool:
    """Whether two values differ by no more than rounding."""
    return high - low <= NOISE * abs(high)


def _constant(value: float, unit: str, natural: tuple[float, float]) -> Axis:
    """The axis of a constant: its size to both sides, as far as the metric can be."""
    smallest, limit = natural if natural[0] <= value <= natural[1] else ANY
    reach = abs(value) or 1.0
    return Axis(
        max(smallest, value - reach), min(limit, value + reach), ((value, rounded(value, unit)),)
    )


def log_axis(logarithms: Iterable[float], *, unit: str = "", labels: int = 2) -> Axis:
    """The axis of decimal logarithms, from 1, 2 or 5 times a power of ten to another one.

    Its labels are the numbers themselves: the powers of ten, or all of those where there are few.
    """
    finite = [value for value in logarithms if math.isfinite(value)]
    if not finite:
        return Axis(0.0, 1.0)
    low, high = min(finite) + NOISE, max(finite) - NOISE
    steps = steps_from(10 ** (low - 1))
    marks = list(takewhile(lambda mark: math.log10(mark) < high + 1, steps))
    first = bisect_right(marks, low, key=math.log10) - 1
    last = max(first + 1, bisect_left(marks, high, key=math.log10))
    inner = marks[first + 1 : last]
    if len(inner) > labels:
        inner = [mark for mark in inner if mark.as_tuple().digits == (1,)]
    inner = inner[:: max(1, -(-len(inner) // labels))]
    labelled = ((mark, text(mark, unit)) for mark in (marks[first], *inner, marks[last]))
    ticks = tuple((math.log10(mark), label) for mark, label in labelled if label)
    return Axis(math.log10(marks[first]), math.log10(marks[last]), ticks)


def _round_ends(
    low: float, high: float, unit: str, natural: tuple[float, float], labels: int
) -> list[Decimal]:
    """The multiples of the finest step that suits the labels, from below the data to above."""
    parts = labels if labels > ALL_FROM else 16
    finest = (high - low) / parts
    for step in steps_from(finest):
        first = math.floor(low / float(step) + NOISE)
        last = math.ceil(high / float(step) - NOISE)
        if first == last:  # the data is nothing beside the finest step that can be labelled
            first, last = (first - 1, last) if low < 0 else (first, last + 1)
        ends = [n * step for n in range(first, last + 1)]
        if ends[-1] > natural[1] >= high:
            ends[-1] = Decimal(round(natural[1]))
        labelled = ends if labels > ALL_FROM else [ends[0], ends[-1]]
        if len(labelled) <= parts + 1 and texts(labelled, unit):
            return ends
    raise AssertionError("the steps have no end")


def steps_from(minimum: float) -> Iterator[Decimal]:
    """1, 2 and 5 times powers of ten, from the least one that is no smaller than this."""
    exponents = count(math.floor(math.log10(minimum)))
    steps = (Decimal(factor).scaleb(power) for power in exponents for factor in (1, 2, 5))
    return dropwhile(lambda step: float(step) < minimum, steps)


# -- labels -------------------------------------------------------------------------------------


def texts(values: Sequence[Decimal], unit: str) -> list[str]:
    """The labels of these numbers; none if one of them is too long or two are alike."""
    written = [text(value, unit) for value in values]
    return written if all(written) and len(set(written)) == len(written) else []


def rounded(value: float, unit: str) -> str:
    """The label of a number with about as many digits as the chart's title has, if they fit."""
    signed = len(f"{abs(value):.0f}")
    limit = 2 if unit == "share" or abs(value) < 1 else max(3, min(4, signed))
    labels = (text(Decimal(f"{value:.{digits}e}"), unit) for digits in range(limit - 1, -1, -1))
    return next((label for label in labels if label), "")


def text(value: Decimal, unit: str = "") -> str:
    """Write a number exactly: `.0032`, `12k`, `3e−5`, `87.5%`; empty if it is too long."""
    value = value.scaleb(SHIFTS.get(unit, 0)).normalize()
    before, figures = value.adjusted() + 1, len(value.as_tuple().digits)
    sign, tail = (MINUS if value < 0 else ""), ("%" if unit == "share" else "")
    # powers of ten to multiply the size by, and the marks behind it
    forms = [(0, "")] if -3 <= before <= 4 else []
    forms += [(-up, mark) for up, mark in ((3, "k"), (6, "M"), (9, "G")) if 0 < before - up <= 3]
    forms += [(-up, f"e{up}".replace("-", MINUS)) for up in (before - 1, before - figures)]
    for power, mark in (*forms, (0, "")):
        size = f"{abs(value).scaleb(power):f}".lstrip("0") or "0"
        if len(label := f"{sign}{size}{mark}{tail}") <= LABEL_CELLS:
            return label
    return ""
