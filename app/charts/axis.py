"""Axes of charts: a range with round ends that contains the data, and labels of few cells.

A label is exact: read back, it is the value that it labels. Only the single label of a constant
series is rounded.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from grpo_tui.app.text.numbers import MEGABYTES_BELOW, MINUS

LABEL_CELLS = 6
ANY = (-math.inf, math.inf)
NOISE = 1e-9  # relative; averages of equal values differ by less
SMALLEST, LARGEST = 1e-45, 1e60  # smaller sizes are drawn as 0, larger ones not at all
DECADE = (1, 2, 5)
SHIFTS = {"share": 2, "MB": 3}  # powers of ten from a value to its label

Decimal = tuple[int, int]
"""A number as n and e: n * 10^e."""


@dataclass(frozen=True, slots=True)
class Axis:
    """The values at both ends, and the labelled values from low to high; log10 if logarithmic."""

    low: float
    high: float
    labels: tuple[tuple[float, str], ...] = ()

    def dot(self, value: float, tall: int) -> int:
        """The dot nearest to a value, of `tall` dots from the top down to the bottom."""
        dot = round((self.high - value) * (tall - 1) / (self.high - self.low) - 1e-6)
        return max(0, min(tall - 1, dot))

    def margin(self, height: int) -> list[str]:
        """The label of each row of cells, four dots each; rows without one are blank."""
        rows = [" " * (LABEL_CELLS + 1)] * height
        for value, text in (*self.labels[:1], *self.labels[:0:-1]):
            row = self.dot(value, 4 * height) // 4
            if not rows[row].strip():
                rows[row] = text.rjust(LABEL_CELLS) + " "
        return rows


def axis(
    values: Iterable[float], *, unit: str = "", natural: tuple[float, float] = ANY,
    guides: Sequence[float] = (), labels: int = 2, log: bool = False,
) -> Axis:  # fmt: skip
    """Return the axis of these values, with some labels, or one if all values are equal.

    It stays within the `natural` range of the metric unless a value is outside. It includes guide
    lines that are at most three times as high as the data, and 0 where the data is near.
    """
    finite = [0.0 if abs(value) < SMALLEST else value for value in values if abs(value) <= LARGEST]
    finite = [value for value in finite if value > 0 or not log]
    if not finite:
        return Axis(0.0, 1.0)
    low, high = min(finite), max(finite)
    if unit == "GB" and max(abs(low), abs(high)) < MEGABYTES_BELOW:
        unit = "MB"
    if equal(low, high):
        return _constant(high, unit, natural, log)
    if log:
        return _logarithmic(low, high, unit, natural, labels)
    if 0 <= low <= 0.6 * high:
        low = 0.0
    for guide in guides:
        if 0 <= guide <= 3 * high:
            low, high = min(low, guide), max(high, guide)
    ends = _round_ends(low, high, unit, natural, halves=labels == 3)
    marks = [number(end) for end in ends]
    return Axis(marks[0], marks[-1], _labelled(ends, unit, labels))


def equal(low: float, high: float) -> bool:
    """Whether two values differ by no more than rounding."""
    return high - low <= NOISE * abs(high)


def number(value: Decimal) -> float:
    return float(f"{value[0]}e{value[1]}")


def _constant(value: float, unit: str, natural: tuple[float, float], log: bool) -> Axis:
    """A constant is drawn in the middle, or at the end of its natural range if it is there."""
    label = rounded(value, unit)
    if log:
        middle, octave = math.log10(value), math.log10(2)
        return Axis(middle - octave, middle + octave, ((middle, label),))
    smallest, limit = natural if natural[0] <= value <= natural[1] else ANY
    reach = abs(value) or 1.0
    low, high = max(smallest, value - reach), min(limit, value + reach)
    space = min(value - low, high - value)
    if space > NOISE * reach:
        low, high = value - space, value + space
    return Axis(low, high, ((value, label),))


def _round_ends(
    low: float, high: float, unit: str, natural: tuple[float, float], *, halves: bool = False
) -> list[Decimal]:
    """The multiples of the finest step that suits the labels, from below the data to above.

    There is one in the middle if there are to be `halves`.
    """
    ends: list[Decimal] = []
    for factor, exponent in _steps((high - low) / 8):
        step = number((factor, exponent))
        first = math.floor(low / step + NOISE)
        last = math.ceil(high / step - NOISE)
        if halves and (last - first) % 2:
            if high <= natural[1] < number(((last + 1) * factor, exponent)):
                first -= 1
            else:
                last += 1
        ends = [(n * factor, exponent) for n in range(first, last + 1)]
        if number(ends[-1]) > natural[1] >= high:
            ends[-1] = (round(natural[1]), 0)
        if texts([ends[0], ends[-1]], unit):
            break
    return ends


def _steps(limit: float) -> Iterator[Decimal]:
    """The largest of 1, 2 and 5 times a power of ten that is at most this, then coarser ones."""
    exponent = math.floor(math.log10(limit))
    factors = [i for i, factor in enumerate(DECADE) if number((factor, exponent)) <= limit]
    start = max(factors, default=0)
    for turn in count(start):
        yield DECADE[turn % 3], exponent + turn // 3


def _labelled(ends: Sequence[Decimal], unit: str, count: int) -> tuple[tuple[float, str], ...]:
    """Both ends and, between them, the multiples nearest to equal distances."""
    last = len(ends) - 1
    marks = [ends[round(last * part / (count - 1))] for part in range(count)]
    if not texts(marks, unit):
        marks = [ends[0], ends[-1]]
    return tuple((number(mark), text(mark, unit)) for mark in marks)


def _logarithmic(
    low: float, high: float, unit: str, natural: tuple[float, float], labels: int
) -> Axis:
    """Round ends within a decade, else 1, 2 or 5 times a power of ten; the middle has one digit."""
    ends = _round_ends(low, high, unit, natural) if high < 10 * low else [(0, 0)]
    if ends[0][0] <= 0:
        ends = [_decade(low, below=True), _decade(high, below=False)]
    first, last = number(ends[0]), number(ends[-1])
    middle = _significant(math.sqrt(first) * math.sqrt(last), 1)
    marks = [ends[0], ends[-1]]
    if labels > 2 and first < number(middle) < last and texts([ends[0], middle, ends[-1]], unit):
        marks.insert(1, middle)
    pairs = zip(marks, texts(marks, unit), strict=True)
    return Axis(math.log10(first), math.log10(last),
                tuple((math.log10(number(mark)), text) for mark, text in pairs))  # fmt: skip


def _decade(value: float, below: bool) -> Decimal:
    exponent = math.floor(math.log10(value))
    around = [(f, exponent + up) for up in (-1, 0, 1) for f in DECADE]
    if below:
        return [d for d in around if number(d) <= value * (1 + NOISE)][-1]
    return next(d for d in around if number(d) >= value * (1 - NOISE))


def _significant(value: float, digits: int) -> Decimal:
    """The nearest number with this many digits."""
    mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
    return int(mantissa.replace(".", "")), int(exponent) - digits + 1


# -- labels -------------------------------------------------------------------------------------


def texts(values: Sequence[Decimal], unit: str) -> list[str]:
    """The labels of these numbers; none if one of them is too long or two are alike."""
    written = [text(value, unit) for value in values]
    return written if all(written) and len(set(written)) == len(written) else []


def rounded(value: float, unit: str) -> str:
    """The label of a number with about as many digits as the chart's title has, if they fit."""
    signed = len(f"{abs(value):.0f}")
    limit = 2 if unit == "share" or abs(value) < 1 else max(3, min(4, signed))
    labels = (text(_significant(value, digits), unit) for digits in range(limit, 0, -1))
    return next((label for label in labels if label), "")


def text(value: Decimal, unit: str = "", space: int = LABEL_CELLS) -> str:
    """Write a number exactly: `.0032`, `12k`, `3e−5`, `87.5%`; empty if it is too long."""
    digits, exponent = value
    while digits and digits % 10 == 0:
        digits, exponent = digits // 10, exponent + 1
    sign, tail = (MINUS if digits < 0 else ""), ("%" if unit == "share" else "")
    exponent = 0 if not digits else exponent + SHIFTS.get(unit, 0)
    figures = str(abs(digits))
    size = len(figures) + exponent  # figures before the point
    plain = _point(figures, size)
    forms = [plain] if -3 <= size <= 4 else []
    forms += [_point(figures, size - up) + mark for up, mark in ((3, "k"), (6, "M"), (9, "G"))
              if 0 < size - up <= 3]  # fmt: skip
    forms += [f"{_point(figures, 1)}e{size - 1}", f"{figures}e{exponent}", plain]
    signed = (sign + form.replace("-", MINUS) + tail for form in forms)
    return next((form for form in signed if len(form) <= space), "")


def _point(figures: str, size: int) -> str:
    """The figures with a decimal point after the first `size`; no zero before the point."""
    if size >= len(figures):
        return figures + "0" * (size - len(figures))
    return f"{figures[: max(0, size)]}.{'0' * -size}{figures[max(0, size) :]}"
