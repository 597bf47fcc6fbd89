"""One chart of several runs as lines: overlaid curves with marks, guide lines, crosshair and axes.

Each run has a mark as well as a colour. Marks are staggered along the curves, so that they stay
visible where curves overlap, and appear at each curve's end.
"""

import math
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from grpo_engine.metrics import natural_range, spec
from grpo_tui.app.text.axes import ROOM, Axis, axis, column
from grpo_tui.app.text.numbers import with_unit
from grpo_tui.app.text.safe_text import cell_len, clip
from grpo_tui.app.tui.looks.colours import Palette, style
from grpo_tui.app.tui.screens.compare.load import ChartData
from grpo_tui.app.tui.screens.compare.render import position_text
from grpo_tui.app.tui.screens.compare.state import Look, View
from grpo_tui.app.tui.screens.compare.tracks import Shape
from grpo_tui.app.tui.widgets.charts.braille import GUIDE, Canvas, stroke
from grpo_tui.app.tui.widgets.panel import Line

LABELS = ROOM + 1
MIDDLE_FROM = 6
BETWEEN_MARKS = 16
EACH_POINT = 24
ARROWS = {"up": " ↑", "down": " ↓", "none": ""}

Cell = tuple[str, int | None, bool]


@dataclass(frozen=True, slots=True)
class Drawn:
    """A curve to draw: one run, or the mean of several seeds with its interval.

    `ranged` is the colour of its range; `raw` curves are lines through all values.
    """

    look: Look
    shape: Shape
    ranged: int | None = None
    raw: bool = False

    def values(self) -> Iterator[float]:
        """All values that are drawn."""
        yield from self.shape.smooth
        if self.raw or self.ranged is not None:
            yield from self.shape.low
            yield from self.shape.high


def drawn_curves(chart: ChartData, view: View, palette: Palette) -> list[Drawn]:
    """The curves of a chart from back to front, with the chosen run in front."""
    shown = {run.id for run in view.drawn}
    found: list[tuple[bool, Drawn]] = []
    grouped: set[str] = set()
    chosen = view.chosen.id if view.chosen else ""
    if view.bands:
        for runs, shape in chart.bands:
            if shown & set(runs):
                grouped |= set(runs)
                within = _within(shape, chart.key, view.log)
                look = view.look(runs[0], palette)
                found.append((chosen in runs, Drawn(look, within, ranged=palette.raw)))
    alone = sum(curve.run in shown for curve in chart.curves) == 1
    for curve in chart.curves:
        if curve.run in shown and curve.run not in grouped:
            front = curve.run == chosen
            raw = curve.shape.sparse or not curve.line.smoothing
            ranged = palette.raw if (front or alone) and not raw else None
            look = view.look(curve.run, palette)
            found.append((front, Drawn(look, curve.shape, ranged, raw)))
    return [drawn for _, drawn in sorted(found, key=lambda pair: pair[0])]


def _within(shape: Shape, key: str, log: bool) -> Shape:
    """An interval without what the metric cannot be, such as a share above 1."""
    least, most = natural_range(key)
    if log:
        least, most = -math.inf, math.log10(most)
    low, high = (
        array("d", (min(max(value, least), most) for value in values))
        for values in (shape.low, shape.high)
    )
    return replace(shape, low=low, high=high)


def guides_of(key: str, view: View) -> tuple[float, ...]:
    """The guide lines of a metric: the limits of the run's alerts, else its own."""
    return view.guides.get(key, spec(key).guides)


def axis_of(
    key: str,
    curves: Sequence[Drawn],
    height: int,
    log: bool,
    guides: Sequence[float] | None = None,
) -> Axis:
    """The vertical axis of a chart of some rows of cells."""
    values = (value for curve in curves for value in curve.values() if math.isfinite(value))
    return axis(
        (10.0**value for value in values) if log else values, unit=spec(key).unit,
        natural=natural_range(key), guides=spec(key).guides if guides is None else guides, log=log,
        labels=3 if height >= MIDDLE_FROM else 2,
    )  # fmt: skip


def plot(
    chart: ChartData, view: View, width: int, height: int, palette: Palette
) -> tuple[list[list[Cell]], Axis]:
    """The cells of the plot without the crosshair, and its vertical axis."""
    curves = drawn_curves(chart, view, palette)
    guides = guides_of(chart.key, view)
    scale = axis_of(chart.key, curves, height, view.log, guides)
    canvas = Canvas(width, height)
    for curve in curves:
        if curve.ranged is not None:
            _fill(canvas, curve.shape, curve.ranged, scale)
    paths = [_trace(canvas, curve, scale) for curve in curves]
    cells: list[list[Cell]] = []
    for row in canvas.rows():
        cells.append([(char, colour, False) for text, colour in row for char in text])
    if not view.log:
        for guide in guides:
            if scale.low < guide <= scale.high:
                # the limits of one run's alerts are named, as on Watch
                named = chart.key in view.guides and view.solo
                word = f" limit {with_unit(guide, spec(chart.key).unit)} " if named else ""
                _guide(cells, guide, scale, palette, word)
    taken: set[tuple[int, int]] = set()
    for turn, (curve, path) in enumerate(zip(curves, paths, strict=True)):
        for x, y in _places(path, curve.shape, turn, len(curves)):
            if (x, y) not in taken:
                taken.add((x, y))
                cells[y][x] = (curve.look.mark, curve.look.colour, True)
    return cells, scale


def _fill(canvas: Canvas, shape: Shape, colour: int, scale: Axis) -> None:
    tall = 4 * canvas.height
    for x, low, high in zip(shape.columns, shape.low, shape.high, strict=True):
        if low == low:
            canvas.bar(x, scale.dot(high, tall), scale.dot(low, tall), colour)


def _trace(canvas: Canvas, curve: Drawn, scale: Axis) -> list[tuple[int, int]]:
    """Draw a curve's line and return the pixels it passes through."""
    tall = 4 * canvas.height
    shape, colour = curve.shape, curve.look.colour
    path: list[tuple[int, int]] = []
    previous: tuple[int, int] | None = None
    for x, value, low, high in zip(shape.columns, shape.smooth, shape.low, shape.high, strict=True):
        if curve.raw and high == high:
            canvas.bar(x, scale.dot(high, tall), scale.dot(low, tall), colour)
        if value != value:
            previous = None
            continue
        point = (x, scale.dot(value, tall))
        stroke(canvas, previous or point, point, colour)
        path.append(point)
        previous = point
    return path


def _places(
    path: Sequence[tuple[int, int]], shape: Shape, turn: int, curves: int
) -> list[tuple[int, int]]:
    """The cells of a curve's marks: all points if sparse, else staggered by curve, and the end."""
    if not path:
        return []
    cells = list(dict.fromkeys((x >> 1, y >> 2) for x, y in path))
    if shape.sparse and len(cells) <= EACH_POINT:
        return cells
    each = max(BETWEEN_MARKS, 5 * curves)
    offset = each * turn // curves + 2
    marked: dict[int, tuple[int, int]] = {}
    for x, y in cells:
        marked.setdefault((x - offset) // each, (x, y))
    first = cells[0]
    return [cells[-1], *(cell for cell in marked.values() if cell[0] > first[0] + 1)]


def _guide(cells: list[list[Cell]], guide: float, scale: Axis, palette: Palette, word: str) -> None:
    """A guide line in the empty cells of its row, with a word where it first fits."""
    row = cells[scale.dot(guide, 4 * len(cells)) >> 2]
    at = "".join(char for char, _, _ in row).find(" " * max(1, len(word)))
    for x, (char, _, _) in enumerate(row):
        if word and 0 <= at <= x < at + len(word):
            row[x] = (word[x - at], palette.label, False)
        elif char == " ":
            row[x] = (GUIDE, palette.guide, False)


def chart_lines(
    chart: ChartData, view: View, cells: list[list[Cell]], scale: Axis, width: int,
    palette: Palette, chosen: bool, span: float, first: float = 0.0,
) -> list[Line]:  # fmt: skip
    """The chart with title line, crosshair and vertical axis labels."""
    lines = [title_line(chart, view, width, palette, chosen)]
    inside = first <= view.x <= first + span
    cross = cross_column(view.x - first, span, width - LABELS) if inside else -1
    labels = scale.margin(len(cells))
    for y, row in enumerate(cells):
        line: Line = [(labels[y], style(palette.label))]
        start = 0
        for x in range(1, len(row) + 1):
            at_cross = cross in (x - 1, x)
            if x == len(row) or at_cross or row[x][1:] != row[start][1:]:
                text = "".join(cell[0] for cell in row[start:x])
                colour, bold = row[start][1:]
                if start == cross and text == " ":
                    text, colour, bold = "│", palette.label, False
                elif start == cross and text == GUIDE:
                    text, colour = "┼", palette.label
                line.append((text, style(colour, bold=bold) if colour is not None else None))
                start = x
        lines.append(line)
    return lines


def cross_column(x: float, span: float, width: int) -> int:
    """The cell column of a position on the axis."""
    return column(x, span, 2 * width) >> 1


def cross_position(column: int, span: float, width: int) -> float:
    """The position on the axis of a cell column, between its two dots."""
    return (2 * column + 0.5) / (2 * width - 1) * span


def title_line(
    chart: ChartData, view: View, width: int, palette: Palette, chosen: bool
) -> Line:  # fmt: skip
    """A metric's name, its better direction, and every run's value at the crosshair."""
    metric = spec(chart.key)
    look = style(palette.headline if chosen else palette.label, bold=chosen)
    name = metric.label if metric.label != chart.key else chart.key
    arrow = ARROWS[metric.direction]
    if view.solo and len(view.runs) == 1:
        arrow += extremes(chart)
    readouts, named = readings(chart, view, palette)
    room = width - 4 - cell_len(name) - cell_len(arrow)
    if len(readouts) <= 3 and width >= 40:
        free = (room - sum(_cells(one) + 2 for one in readouts)) // max(1, len(readouts))
        # the number of seeds goes first, and what they share is not cut
        named = [who if cell_len(who) < free else who.rpartition(", ")[0] or who for who in named]
        whole = not view.bands or all(cell_len(who) < free for who in named)
        if free >= 7 and whole:
            for who, one in zip(named, readouts, strict=True):
                one.insert(1, (clip(who, free - 1) + " ", style(palette.label)))
    right: Line = []
    gap = "  " if sum(_cells(one) + 2 for one in readouts) <= room else " "
    for one in readouts:
        if _cells(right) + _cells(one) + len(gap) > room:
            right.append((" …", style(palette.label)))
            break
        right += [(gap, None), *one]
    left: Line = [("▸" if chosen else " ", style(palette.accent)),
                  (clip(name, width - 3 - cell_len(arrow)), look),
                  (arrow, style(palette.label))]  # fmt: skip
    return [*left, (" " * max(0, width - _cells(left) - _cells(right)), None), *right]


def extremes(chart: ChartData) -> str:
    """The least, largest and last value of the only curve, with their steps."""
    if not chart.curves:
        return ""
    line, unit = chart.curves[0].line, spec(chart.key).unit
    values = np.frombuffer(line.values) if line.values else np.zeros(0)
    known = np.flatnonzero(np.isfinite(values))
    if not len(known):
        return ""
    least, most = known[values[known].argmin()], known[values[known].argmax()]
    named = (("min", least), ("max", most), ("last", known[-1]))
    return "".join(
        f"  {name} {with_unit(line.values[at], unit)} @{line.steps[at]}" for name, at in named
    )


def readings(chart: ChartData, view: View, palette: Palette) -> tuple[list[Line], list[str]]:
    """Each curve's mark and recorded value at the crosshair, and which run it belongs to.

    The value of a band is the mean of its seeds.
    """
    found: list[Line] = []
    names: list[str] = []
    unit = spec(chart.key).unit
    shown = {run.id for run in view.drawn}
    groups = [group for group, _ in chart.bands if shown & set(group)] if view.bands else []
    members = {run for group in groups for run in group}
    groups += [(run.id,) for run in view.drawn if run.id not in members]
    for group in groups:
        known = [run for run in group if view.curve(chart.key, run) is not None]
        mark = view.look(group[0], palette)
        names.append(view.name_of(group))
        reads = [view.value_at_x(chart.key, run) for run in known]
        values = [value for value, _ in reads if value is not None]
        if not known:
            found.append([(f"{mark.mark} ", style(palette.label)), ("none", style(palette.label))])
            continue
        value = math.fsum(values) / len(values) if values else None
        reaches = any(view.end(run) >= view.x for run in view.runs if run.id in group)
        chosen = view.chosen is not None and view.chosen.id in group
        front = style(mark.colour if reaches else palette.label, bold=chosen)
        line: Line = [(f"{mark.mark} ", style(mark.colour, bold=True)),
                      (with_unit(value, unit), front)]  # fmt: skip
        if reaches and view.axis == "step" and (old := [s for _, s in reads if s is not None]):
            # an evaluation of an earlier step, next to those of this one
            line += [(f" @{min(old)}", style(palette.label))] if min(old) < int(view.x) else []
        found.append(line)
    return found, names


def _cells(line: Line) -> int:
    return sum(cell_len(text) for text, _ in line)


def axis_line(view: View, width: int, span: float, palette: Palette, first: float = 0.0) -> Line:
    """The horizontal axis below the charts, with both ends and the crosshair's position."""
    room = width - LABELS
    label = style(palette.label)
    right = position_text(view.axis, first + span).removeprefix("step ")
    left = position_text(view.axis, first).removeprefix("step ") if first else "0"
    here = position_text(view.axis, view.x)
    column = cross_column(view.x - first, span, room)
    fits = column + cell_len(here) + 2 <= room
    start = column if fits else max(0, column - cell_len(here) - 1)
    line: Line = [(" " * LABELS, None)]
    if start > len(left) + 1:
        line += [(left, label), (" " * (start - len(left)), None)]
    else:
        line.append((" " * start, None))
    line.append((f"▴ {here}" if fits else f"{here} ▴", style(palette.text)))
    rest = room - start - cell_len(here) - 2
    if rest >= cell_len(right) + 2:
        line.append((right.rjust(rest), label))
    return line
