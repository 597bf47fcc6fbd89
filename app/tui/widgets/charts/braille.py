"""Curves as braille dots: pure functions from series to cells, with one pass per series.

A cell has two dots across and four down. Buckets of steps are placed by absolute step on a span
that grows in a few large steps, so that a curve does not wobble while the run grows. The first and
the last step of the span are at the outermost dots.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, isfinite, nan

from grpo_tui.app.feed.series import SeriesView
from grpo_tui.app.text.axes import Axis

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
    """A chart's vertical axis, and the first and last step of its width."""

    axis: Axis
    first: int
    last: int


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
    """The number of steps that the width covers, from step 0 to a round one or the last.

    It grows by a third or a half, up to the total.
    """
    last = 20
    while last + 1 < steps:
        last = last * 4 // 3 if last % 3 == 0 else last * 3 // 2
    return total if steps <= total < last + 1 else last + 1


def drawn_values(curve: Curve) -> Iterator[float]:
    """The extremes of what is drawn of a curve."""
    view = curve.view
    ranged = view.sparse or curve.raw_colour is not None
    for values in (view.low, view.high) if ranged else (view.smooth,):
        if known := _finite(values):
            yield from (min(known), max(known))


def draw(canvas: Canvas, curve: Curve, frame: Frame) -> None:
    """Draw one series: a faint raw range with the smoothed line on top; NaN is a gap.

    A sparse series is a line through its values, broken where one is not a number.
    """
    view, axis = curve.view, frame.axis
    wide, tall = 2 * canvas.width, 4 * canvas.height
    points: list[tuple[int, int] | None] = []
    for x, part in columns(view, frame, wide):
        high, low = _finite(view.high[part]), _finite(view.low[part])
        if curve.raw_colour is not None and high and not view.sparse:
            top, bottom = axis.dot(max(high), tall), axis.dot(min(low), tall)
            canvas.bar(x, top, bottom, curve.raw_colour, over=False)
        line: Sequence[float] = view.smooth[part]
        if view.sparse:
            ranges = zip(view.low[part], view.high[part], strict=True)
            line = [v for pair in ranges if pair[0] == pair[0] for v in _or_gap(pair)]
        for value in _turns(line):
            points.append((x, axis.dot(value, tall)) if value == value else None)
    polyline(canvas, points, curve.colour)


def _or_gap(pair: tuple[float, float]) -> tuple[float, ...]:
    return pair if pair[0] < inf else (nan,)


def columns(view: SeriesView, frame: Frame, wide: int) -> Iterator[tuple[int, slice]]:
    """Each non-empty column of dots, and its buckets: those whose first step is nearest to it."""
    begin, count = view.steps().start, len(view.low)
    length = max(1, frame.last - frame.first)

    def bucket(step: int) -> int:
        """The first bucket that begins at this step or later."""
        return max(0, min(count, -((begin - step) // view.width)))

    end = bucket(frame.first)
    for x in range(1, wide + 1):
        # the first step with (step - first) * (wide - 1) / length >= x - 1/2
        step = frame.first - length * (1 - 2 * x) // (2 * (wide - 1))
        start, end = end, bucket(min(step, frame.last + 1))
        if start < end:
            yield x - 1, slice(start, end)


def _finite(values: "array[float]") -> Sequence[float]:
    return values if isfinite(sum(values)) else [value for value in values if isfinite(value)]


def _turns(values: Sequence[float]) -> Sequence[float]:
    """Reduce one column's values to those whose strokes cover the same dots."""
    if len(values) <= 4 or not isfinite(sum(values)):
        return values
    return values[0], min(values), max(values), values[-1]


def polyline(canvas: Canvas, points: Sequence[tuple[int, int] | None], colour: int) -> None:
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
