"""Curves as cells: braille dots with a colour per cell, guide lines, marks, axis labels, titles.

A cell has two dots across and four down.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, product
from operator import itemgetter

from grpo_engine.metrics import natural_range, spec
from grpo_tui.app.charts.axis import LABEL_CELLS, Axis, axis, log_axis, steps_from
from grpo_tui.app.charts.series import Series, Trace, column, cut, logarithm
from grpo_tui.app.text.numbers import short
from grpo_tui.app.text.safe_text import cell_len, clip, clip_distinct
from grpo_tui.app.text.words import count_of
from grpo_tui.app.tui.widgets.panel import Line, cells, justified

LABELS = LABEL_CELLS + 1
MIDDLE_FROM = 6  # rows with which an axis has a label in the middle
GRID_FROM = 12  # rows with which it has four or more, and the chart a grid
TICK_CELLS = 8  # between two ticks below a chart
MOST_TICKS = 5
BETWEEN_MARKS = 16
MARK_EACH = 24  # points of a sparse curve, at most, that have a mark each
POINT = "●"  # a measured point of a curve that is alone in its chart
LOG_NEAR = 0.5  # powers of ten above the data to which a guide line may be
DASH = 4  # dots of a line between measured points, of which the second half is left out
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
GUIDE = "┈"
GRID = {" ": "│", "─": "┼"}  # a vertical line of the grid, in cells that have nothing else
NAME_CELLS = (99, 24, 14, 9, 0)  # of the curves' names, as there is room for them
CROSSED = {" ": "│", GUIDE: "┼", "─": "┼", "│": "│", "┼": "┼"}

Cell = tuple[str, str]  # a character and its style
Dot = tuple[int, int]
Tick = tuple[int, str]
"""A column of cells, and its label."""
Guide = tuple[float, Sequence[str]]
"""A value, and the words of its line, of which the first that fit are used."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A trace with its colour; the range of its values is below all lines, in its own colour."""

    trace: Trace
    colour: str
    mark: str = ""
    ranged: bool = False

    @classmethod
    def of(
        cls, series: Series, end: float, width: int, colour: str, *, ranged: bool = True
    ) -> "Curve":
        """A metric's curve up to a step in so many cells; one of measured points has marks."""
        mark = POINT * (series.sparse and series.count <= MARK_EACH)
        trace = cut(series, series.steps, end, 2 * width)
        return cls(trace, colour, mark, ranged and not series.sparse)

    @property
    def measured(self) -> bool:
        """Whether the points have marks and what is between them is dashed, for they are few."""
        return bool(self.mark) and self.trace.sparse and len(self.trace.columns) <= MARK_EACH

    def values(self) -> Iterator[float]:
        """All values that are drawn."""
        for item in self.trace.columns:
            yield from item.line
            if self.ranged:
                yield from (item.low, item.high)


class BrailleCanvas:
    """Braille dots with one colour per cell; the last one drawn sets the cell's colour."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.bits = [[0] * width for _ in range(height)]
        self.colours: list[list[str]] = [[""] * width for _ in range(height)]

    def bar(self, x: int, top: int, bottom: int, colour: str) -> None:
        """Set the dots at pixels (x, top) to (x, bottom); y counts from the top."""
        for y in range(max(0, top), min(4 * self.height - 1, bottom) + 1):
            row, at = y >> 2, x >> 1
            if self.colours[row][at] != colour:
                self.colours[row][at], self.bits[row][at] = colour, 0
            self.bits[row][at] |= DOTS[y & 3][x & 1]

    def line(self, points: Iterable[Dot | None], colour: str, dash: int = 0) -> None:
        """Join pixels by straight lines, which may be dashed; None is a gap."""
        previous: Dot | None = None
        for point in points:
            if point is not None:
                self._stroke(previous or point, point, colour, dash)
            previous = point

    def _stroke(self, start: Dot, end: Dot, colour: str, dash: int) -> None:
        (x0, y0), (x1, y1) = start, end
        if x0 == x1:
            self.bar(x0, min(y0, y1), max(y0, y1), colour)
            return
        length = max(abs(x1 - x0), abs(y1 - y0))
        for i in range(1, length + 1):  # the start has its dot already
            if dash and i % dash >= dash // 2 and i < length:
                continue
            y = round(y0 + (y1 - y0) * i / length)
            self.bar(x0 + (x1 - x0) * i // length, y, y, colour)

    def rows(self) -> list[list[Cell]]:
        """Each row of cells; empty ones are spaces."""
        return [
            [
                (chr(0x2800 + bits), colour) if bits else (" ", "")
                for bits, colour in zip(*row, strict=True)
            ]
            for row in zip(self.bits, self.colours, strict=True)
        ]


def axis_of(
    key: str, curves: Sequence[Curve], height: int, guides: Iterable[float] = (), log: bool = False
) -> Axis:
    """The vertical axis of a metric's chart of some rows of cells."""
    values = [value for curve in curves for value in curve.values() if math.isfinite(value)]
    labels = 5 if height >= GRID_FROM else 3 if height >= MIDDLE_FROM else 2
    unit = spec(key).unit
    if log:
        near = [guide for guide in guides if guide <= max(values) + LOG_NEAR]
        return log_axis([*values, *near], unit=unit, labels=labels)
    return axis(values, unit=unit, natural=natural_range(key), guides=tuple(guides), labels=labels)


def chart_cells(
    key: str,
    curves: Sequence[Curve],
    width: int,
    height: int,
    guides: Sequence[Guide] = (),
    ticks: Sequence[Tick] = (),
    log: bool = False,
) -> tuple[list[list[Cell]], Axis]:
    """The cells of a metric's chart and its vertical axis, logarithmic if a value is above 0."""
    if log := log and any(value > 0 for curve in curves for value in curve.values()):
        curves = [replace(curve, trace=curve.trace.logarithmic()) for curve in curves]
        guides = [(logarithm(value), texts) for value, texts in guides]
    scale = axis_of(key, curves, height, [value for value, _ in guides], log)
    return plot(curves, scale, width, height, guides, ticks), scale


def log_hints(curves: Iterable[Series]) -> tuple[str, ...]:
    """What a logarithmic chart says of its axis, the longest first."""
    values = [value for curve in curves for value in curve.values if value == value]
    if not any(value > 0 for value in values):
        return ("no log axis: no value is above 0",)
    count = sum(value <= 0 for value in values)
    return (*[f"log axis, {count_of(count, 'value')} ≤ 0 not drawn"] * (count > 0), "log axis")


def plot(
    curves: Sequence[Curve],
    scale: Axis,
    width: int,
    height: int,
    guides: Sequence[Guide] = (),
    ticks: Iterable[Tick] = (),
) -> list[list[Cell]]:
    """The cells of the curves, the last one in front, with guide lines, marks and a grid."""
    canvas = BrailleCanvas(width, height)
    tall = 4 * height
    for curve in curves:
        for item in curve.trace.columns:
            if curve.ranged and item.low == item.low:
                canvas.bar(item.x, scale.dot(item.high, tall), scale.dot(item.low, tall), "raw")
    paths = [_path(curve.trace, scale, tall) for curve in curves]
    for curve, path in zip(curves, paths, strict=True):
        canvas.line(path, curve.colour, DASH * curve.measured)
    rows = canvas.rows()
    for value, texts in guides:
        if scale.low < value <= scale.high:
            row = scale.dot(value, tall) >> 2
            beside = [at for at, _ in scale.labels if scale.dot(at, tall) >> 2 == row]
            if any(
                not math.isclose(at, value) for at in beside
            ):  # without a number it would be theirs
                texts = [text for text in texts if any(map(str.isdigit, text))]
            _lay_guide(rows[row], texts)
    if height >= GRID_FROM:
        _lay_grid(rows, {scale.dot(value, tall) >> 2 for value, _ in scale.labels}, ticks)
    marked: set[Dot] = set()
    for turn, (curve, path) in enumerate(zip(curves, paths, strict=True)):
        for x, y in _marks(path, curve, turn, len(curves)):
            if (x, y) not in marked:
                marked.add((x, y))
                rows[y][x] = (curve.mark, f"bold {curve.colour}")
    return rows


def _path(trace: Trace, scale: Axis, tall: int) -> list[Dot | None]:
    return [
        (item.x, scale.dot(value, tall)) if value == value else None
        for item in trace.columns
        for value in item.line
    ]


def _marks(path: Sequence[Dot | None], curve: Curve, turn: int, curves: int) -> list[Dot]:
    """The cells of a curve's marks: all points if sparse, else staggered by curve, and the end."""
    dots = (dot for dot in path if dot and curve.mark)
    points = list(dict.fromkeys((x >> 1, y >> 2) for x, y in dots))
    if curve.measured:
        return points
    distance = max(BETWEEN_MARKS, 5 * curves)
    return [*points[-1:], *points[distance * turn // curves + 2 :: distance]]


def _lay_guide(row: list[Cell], texts: Sequence[str]) -> None:
    """A guide line in the empty cells of its row, with the first text for which there is room.

    A text may be over the range of the values where no line is.
    """
    row[:] = [(GUIDE, "raw") if char == " " else (char, style) for char, style in row]
    free = "".join(char for char, _ in row)
    behind = "".join(GUIDE if style == "raw" else char for char, style in row)
    for line, begin in (free, len(row) // 4), (free, 0), (behind, 0):
        for text in (f" {text} " for text in texts):
            start = line.find(GUIDE * (len(text) + 2), begin) + 1
            if start:
                row[start : start + len(text)] = [(char, "label") for char in text]
                return


def _lay_grid(rows: Sequence[list[Cell]], labelled: Iterable[int], ticks: Iterable[Tick]) -> None:
    """Faint lines through the empty cells, at the labels of both axes."""
    for y in labelled:
        rows[y][:] = [("─", "guide") if cell == (" ", "") else cell for cell in rows[y]]
    for row, (x, _) in product(rows, tuple(ticks)):
        if row[x][0] in GRID and row[x][1] != "label":
            row[x] = GRID[row[x][0]], "guide"


def plot_lines(rows: Sequence[Sequence[Cell]], scale: Axis, cross: int = -1) -> list[Line]:
    """The rows of a plot behind their axis labels, with a crosshair in one column."""
    lines = []
    for label, row in zip(scale.margin(len(rows)), map(list, rows), strict=True):
        if 0 <= cross < len(row) and row[cross][0] in CROSSED:
            row[cross] = (CROSSED[row[cross][0]], "label")
        line = [(label, "label")]
        for style, group in groupby(row, key=itemgetter(1)):
            line.append(("".join(char for char, _ in group), style))
        lines.append(line)
    return lines


def cross_column(x: float, span: float, width: int) -> int:
    """The cell column of a position on the axis."""
    return column(x, span, 2 * width) >> 1


def cross_position(at: int, span: float, width: int) -> float:
    """The position on the axis of a cell column, between its two dots."""
    return (2 * at + 0.5) / (2 * width - 1) * span


def ticks_of(span: float, width: int, axis: str = "step") -> list[Tick]:
    """Round steps, tokens or seconds (`wall`) between the ends of an axis from 0 to `span`."""
    if span <= 0:
        return []
    ideal = span / max(2, min(MOST_TICKS, width // TICK_CELLS))
    unit, sign = 1, "s" * (axis == "wall")
    if sign and span >= 99.5:
        unit, sign = (60, " min") if span < 5400 else (3600, " h")
    step = unit * float(next(steps_from(ideal / unit)))
    if axis == "step":
        step = max(1.0, step)
    positions = (n * step for n in range(1, math.ceil(span / step)))
    return [
        (cross_column(x, span, width), short(x / unit) + sign)
        for x in positions
        if x <= span - step / 2
    ]


def axis_line(last: str, width: int, ticks: Iterable[Tick] = (), first: str = "0") -> Line:
    """The ends of the axis below charts, and what fits between them."""
    text, end = " " * LABELS + first, width - cell_len(last)
    for at, label in ticks:
        start = LABELS + at - len(label) // 2
        if len(text) < start and start + len(label) + 2 <= end:
            text = text.ljust(start) + label
    return [(text + last.rjust(max(len(last) + 1, width - len(text))), "label")]


# -- title --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Readout:
    """A curve's value, its name, and details of it, the longest first."""

    value: str
    value_style: str
    mark: Cell = ("", "")
    name: str = ""
    details: tuple[str, ...] = ()

    def spans(self, name: str) -> Line:
        """Mark, the name as it was cut, and value."""
        return [self.mark, (name and f"{name} ", "label"), (self.value, self.value_style)]


def title_line(
    name: str, readouts: Sequence[Readout], width: int, *, chosen: bool, hints: Sequence[str] = ()
) -> Line:
    """The chart's name, the first of the hints that fits, and the readouts."""
    right = _readouts(readouts, width - cell_len(name) - 2)
    name = clip(name, width - 3)
    value_style = "bold headline" if chosen else "label"
    left = [("▸" if chosen else " ", "accent"), (name, value_style)]
    free = width - cells(left) - cells(right) - 3
    left += [(f"  {hint}", "label") for hint in hints if cell_len(hint) <= free][:1]
    return justified(left, right, width)


def named(readouts: Sequence[Readout], name_cells: int) -> list[Line]:
    """The parts of a title, with names in so many cells."""
    names = clip_distinct([item.name for item in readouts], name_cells)
    return [item.spans(name) for item, name in zip(readouts, names, strict=True)]


def _readouts(readouts: Sequence[Readout], space: int) -> Line:
    """All of them with the longest names that fit, else those that fit without names."""
    for name_cells in NAME_CELLS:
        parts = named(readouts, name_cells)
        free = space - sum(cells(part) + 2 for part in parts) + 2
        if free >= 0:
            details = next((text for text in readouts[0].details if cell_len(text) <= free), "")
            parts[0] += [(details, "label")] if details else []
            return [span for part in parts for span in (("  ", ""), *part)][1:]
    line: Line = []
    for part in named(readouts, 0):
        if cells(line) + cells(part) + 2 > space:
            return [*line[1:], (" …", "label")] if line else []
        line += [(" ", ""), *part]
    return line[1:]
