"""Curves as braille dots: pure functions from series to cells, with one pass per series.

A cell has two dots across and four down. Buckets of steps are placed by absolute step on a span
that grows in a few large steps, so that a curve does not wobble while the run grows.
"""

import math
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite

from app.feed.series import SeriesView

DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
BARS = tuple(
    tuple(tuple(sum(dots[side] for dots in DOTS[top : end + 1]) for end in range(4))
          for top in range(4))
    for side in range(2)
)  # fmt: skip
"""The bits of a cell for dots `top` to `end` in its left or right column."""
GUIDE = "┈"


@dataclass(frozen=True, slots=True)
class Curve:
    """A series with its colour; `raw` values are drawn below it in their own colour."""

    view: SeriesView
    colour: int
    raw_colour: int | None = None


@dataclass(frozen=True, slots=True)
class Frame:
    """The values at a chart's edges."""

    low: float
    high: float
    first: int
    span: int


class Canvas:
    """Braille dots with one colour per cell; the last one drawn sets the cell's colour."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.bits = [[0] * width for _ in range(height)]
        self.colours: list[list[int | None]] = [[None] * width for _ in range(height)]

    def bar(self, x: int, top: int, bottom: int, colour: int, *, over: bool = True) -> None:
        """Set the dots at pixels (x, top) to (x, bottom); y counts from the top."""
        if not 0 <= x < 2 * self.width:
            return
        top, bottom, column = max(0, top), min(4 * self.height - 1, bottom), x >> 1
        while top <= bottom:
            row, end = top >> 2, min(top | 3, bottom)
            bits, colours = self.bits[row], self.colours[row]
            if colours[column] == colour:
                bits[column] |= BARS[x & 1][top & 3][end & 3]
            elif over or not bits[column]:
                colours[column] = colour
                bits[column] = BARS[x & 1][top & 3][end & 3]
            top = end + 1

    def rows(self) -> list[list[tuple[str, int | None]]]:
        """Each row as runs of same-coloured text; empty cells are spaces."""
        result = []
        for bits, colours in zip(self.bits, self.colours, strict=True):
            runs: list[tuple[str, int | None]] = []
            for bit, colour in zip(bits, colours, strict=True):
                char, look = (chr(0x2800 + bit), colour) if bit else (" ", None)
                if runs and runs[-1][1] == look:
                    runs[-1] = (runs[-1][0] + char, look)
                else:
                    runs.append((char, look))
            result.append(runs)
        return result


def span_of(steps: int, total: int) -> int:
    """The number of steps that the width covers; it grows by a third or a half, up to the total."""
    span = 16
    while span < steps:
        span = span * 3 // 2 if (span & (span - 1)) == 0 else span * 4 // 3
    return total if steps <= total < span else span


def limits(views: Sequence[SeriesView], guides: Sequence[float] = (), floor: float | None = None,
           ceiling: float | None = None) -> tuple[float, float]:  # fmt: skip
    """A range with round ends that shows the smoothed curves and most raw values.

    It includes guide lines that are at most three times as high as the data.
    """
    values: list[float] = []
    for view in views:
        if smooth := _finite(view.smooth):
            values += (min(smooth), max(smooth))
        if raw := sorted(_finite(view.high)):
            values.append(raw[-1 if view.sparse else int(0.98 * (len(raw) - 1))])
        if raw := sorted(_finite(view.low)):
            values.append(raw[math.ceil(0.02 * (len(raw) - 1))])
    if not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
    if low >= 0 and low <= 0.6 * high:
        low = 0.0
    for guide in guides:
        if high < guide <= 3 * high or (low > guide and guide >= 0):
            low, high = min(low, guide), max(high, guide)
    if floor is not None:
        low = max(low, floor)
    if high - low < 1e-12:
        pad = abs(high) * 0.5 or 1.0
        low, high = (0.0, 2 * high) if high > 0 else (low - pad, high + pad)
    low, high = _round_down(low, high - low), -_round_down(-high, high - low)
    return low, (min(high, ceiling) if ceiling is not None and low < ceiling else high)


def _round_down(value: float, span: float) -> float:
    unit = 10.0 ** (math.floor(math.log10(span)) - 1)
    for factor in (5, 2, 1):
        if span / (unit * factor) >= 8:
            return math.floor(value / (unit * factor) + 1e-9) * unit * factor
    return math.floor(value / unit + 1e-9) * unit


def draw(canvas: Canvas, curve: Curve, frame: Frame) -> None:
    """Draw one series: a faint raw range with the smoothed line on top; NaN is a gap."""
    view = curve.view
    wide, tall = 2 * canvas.width, 4 * canvas.height
    scale = (tall - 1) / (frame.high - frame.low)

    def row(value: float) -> int:
        return max(0, min(tall - 1, round((frame.high - value) * scale - 1e-6)))

    points: list[tuple[int, int] | None] = []
    for x, part in columns(view, frame, wide):
        if curve.raw_colour is not None and not view.sparse:
            high, low = _finite(view.high[part]), _finite(view.low[part])
            if high:
                canvas.bar(x, row(max(high)), row(min(low)), curve.raw_colour, over=False)
        for value in _turns((view.high if view.sparse else view.smooth)[part]):
            if value == value:
                points.append((x, row(value)))
            elif not view.sparse:
                points.append(None)
    _line(canvas, points, curve.colour)


def columns(view: SeriesView, frame: Frame, wide: int) -> Iterator[tuple[int, slice]]:
    """Each non-empty column of dots, and its buckets: those whose first step is in it."""
    begin, count = view.steps().start, len(view.low)

    def place(x: int) -> int:
        """The first bucket with (step - first) * wide // span >= x."""
        step = frame.first - (-x * frame.span // wide)
        return max(0, min(count, -((begin - step) // view.width)))

    end = place(0)
    for x in range(wide):
        start, end = end, place(x + 1)
        if start < end:
            yield x, slice(start, end)


def _finite(values: "array[float]") -> Sequence[float]:
    return values if isfinite(sum(values)) else [value for value in values if isfinite(value)]


def _turns(values: "array[float]") -> Sequence[float]:
    """Reduce one column's values to those whose strokes cover the same dots."""
    if len(values) <= 4 or not isfinite(sum(values)):
        return values
    return values[0], min(values), max(values), values[-1]


def _line(canvas: Canvas, points: list[tuple[int, int] | None], colour: int) -> None:
    previous: tuple[int, int] | None = None
    for point in points:
        if point is not None:
            stroke(canvas, previous or point, point, colour)
        previous = point


def stroke(canvas: Canvas, start: tuple[int, int], end: tuple[int, int], colour: int) -> None:
    """Draw a straight line to `end`, given that `start` is drawn already."""
    (x0, y0), (x1, y1) = start, end
    if x0 == x1:
        canvas.bar(x0, min(y0, y1), max(y0, y1), colour)
        return
    length = max(abs(x1 - x0), abs(y1 - y0))
    for i in range(1, length + 1):  # the start is drawn already
        y = round(y0 + (y1 - y0) * i / length)
        canvas.bar(x0 + (x1 - x0) * i // length, y, y, colour)
