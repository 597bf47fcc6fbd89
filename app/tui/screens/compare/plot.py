"""One chart of several runs as lines: overlaid curves with marks, guide lines, crosshair and axes.

Each run has a mark as well as a colour. Marks are staggered along the curves, so that they stay
visible where curves overlap, and appear at each curve's end.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from app.text.numbers import short, with_unit
from app.text.safe_text import cell_len, clip
from app.tui.looks.colours import Palette, style
from app.tui.screens.compare.load import ChartData, smooth_value
from app.tui.screens.compare.tracks import Shape
from app.tui.screens.compare.verdict import place_text
from app.tui.screens.compare.view import Look, View
from app.tui.widgets.charts.braille import GUIDE, Canvas, limits, stroke
from app.tui.widgets.panel import Line
from grpo_engine.metrics import spec

LABELS = 6
BETWEEN_MARKS = 16
EACH_POINT = 24
ARROWS = {"up": " ↑", "down": " ↓", "none": ""}

Cell = tuple[str, int | None, bool]


@dataclass(frozen=True, slots=True)
class Drawn:
    """A curve to draw: one run, or the mean of several seeds with its interval."""

    look: Look
    shape: Shape
    ranged: int | None


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
                found.append((chosen in runs, Drawn(view.look(runs[0], palette), shape,
                                                    palette.raw)))  # fmt: skip
    alone = sum(curve.run in shown for curve in chart.curves) == 1
    for curve in chart.curves:
        if curve.run in shown and curve.run not in grouped:
            front = curve.run == chosen
            ranged = palette.raw if (front or alone) and view.smoothing else None
            found.append((front, Drawn(view.look(curve.run, palette), curve.shape, ranged)))
    return [drawn for _, drawn in sorted(found, key=lambda pair: pair[0])]


def bounds(key: str, curves: Sequence[Drawn], log: bool) -> tuple[float, float]:
    """The range of the vertical axis, in log10 on a logarithmic axis."""
    views = [curve.shape.view for curve in curves]
    if not log:
        guides = spec(key).guides
        return limits(views, guides, ceiling=1.0 if spec(key).unit == "share" else None)
    values = [
        value for view in views for part in (view.smooth, view.high, view.low) for value in part
        if math.isfinite(value)
    ]  # fmt: skip
    if not values:
        return -1.0, 1.0
    low, high = min(values), max(values)
    room = max(0.05 * (high - low), 0.02)
    return low - room, high + room


def plot(
    chart: ChartData, view: View, width: int, height: int, palette: Palette
) -> tuple[list[list[Cell]], tuple[float, float]]:
    """The cells of the plot without the crosshair, and the value range they cover."""
    curves = drawn_curves(chart, view, palette)
    low, high = bounds(chart.key, curves, view.log)
    canvas = Canvas(width, height)
    paths = []
    for curve in curves:
        if curve.ranged is not None:
            _fill(canvas, curve, low, high)
    for curve in curves:
        raw = not view.smoothing and not view.bands
        paths.append(_trace(canvas, curve, low, high, raw))
    cells: list[list[Cell]] = []
    for row in canvas.rows():
        cells.append([(char, colour, False) for text, colour in row for char in text])
    if not view.log:
        for guide in spec(chart.key).guides:
            if low < guide <= high:
                _guide(cells, guide, low, high, palette)
    taken: set[tuple[int, int]] = set()
    for turn, (curve, path) in enumerate(zip(curves, paths, strict=True)):
        for x, y in _places(path, curve.shape, turn, len(curves)):
            if (x, y) not in taken and 0 <= x < width and 0 <= y < height:
                taken.add((x, y))
                cells[y][x] = (curve.look.mark, curve.look.colour, True)
    return cells, (low, high)


def _row(value: float, low: float, high: float, tall: int) -> int:
    place = round((high - value) * (tall - 1) / (high - low) - 1e-6)
    return max(0, min(tall - 1, place))


def _fill(canvas: Canvas, curve: Drawn, low: float, high: float) -> None:
    tall = 4 * canvas.height
    shape = curve.shape
    if shape.sparse and curve.ranged is None:
        return
    for column, bottom, top in zip(shape.columns, shape.low, shape.high, strict=True):
        if bottom == bottom and top == top and curve.ranged is not None:
            first, last = _row(top, low, high, tall), _row(bottom, low, high, tall)
            canvas.bar(column, first, last, curve.ranged, over=False)


def _trace(
    canvas: Canvas, curve: Drawn, low: float, high: float, raw: bool
) -> list[tuple[int, int]]:
    """Draw a curve's line and return the pixels it passes through."""
    tall = 4 * canvas.height
    shape, colour = curve.shape, curve.look.colour
    path: list[tuple[int, int]] = []
    previous: tuple[int, int] | None = None
    for place, column in enumerate(shape.columns):
        value = shape.smooth[place]
        if value != value:
            previous = None
            continue
        point = (column, _row(value, low, high, tall))
        if raw and not shape.sparse:
            top, bottom = (_row(v, low, high, tall) for v in (shape.high[place], shape.low[place]))
            stroke(canvas, (column, top), (column, bottom), colour)
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
        return cells[::-1]
    each = max(BETWEEN_MARKS, 5 * curves)
    offset = each * turn // max(1, curves) + 2
    marked: dict[int, tuple[int, int]] = {}
    for x, y in cells:
        marked.setdefault((x + each - offset) // each, (x, y))
    first = cells[0]
    return [cells[-1], *(cell for cell in marked.values() if cell[0] > first[0] + 1)]


def _guide(
    cells: list[list[Cell]], guide: float, low: float, high: float, palette: Palette
) -> None:
    row = cells[_row(guide, low, high, 4 * len(cells)) >> 2]
    for x, (char, _, _) in enumerate(row):
        if char == " ":
            row[x] = (GUIDE, palette.guide, False)


def chart_lines(
    chart: ChartData, view: View, cells: list[list[Cell]], low_high: tuple[float, float],
    width: int, palette: Palette, chosen: bool, span: float,
) -> list[Line]:  # fmt: skip
    """The chart with title line, crosshair and vertical axis labels."""
    lines = [title_line(chart, view, width, palette, chosen)]
    cross = cross_column(view.x, span, width - LABELS)
    unit = spec(chart.key).unit
    labels = axis_labels(low_high, len(cells), unit, view.log)
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
    return max(0, min(width - 1, int(x * 2 * width / span) >> 1))


def axis_labels(low_high: tuple[float, float], height: int, unit: str, log: bool) -> list[str]:
    """The label of each row: top, bottom, and the middle if there is room."""
    low, high = low_high

    def text(value: float) -> str:
        value = 10.0**value if log else value
        if unit == "share":
            percent = f"{100 * value:.0f}" if abs(value) >= 0.0995 else f"{100 * value:.1f}"
            return clip(percent.removesuffix(".0") + "%", LABELS - 1).rjust(LABELS - 1) + " "
        return clip(short(value, 2), LABELS - 1).rjust(LABELS - 1) + " "

    found = [" " * LABELS] * height
    if height:
        found[0] = text(high)
        if height >= 6:
            middle = (height - 1) // 2
            found[middle] = text(high - (high - low) * (4 * middle + 1.5) / (4 * height - 1))
        if height > 1:
            found[-1] = text(low)
    return found


def title_line(
    chart: ChartData, view: View, width: int, palette: Palette, chosen: bool
) -> Line:  # fmt: skip
    """A metric's name, its better direction, and every run's value at the crosshair."""
    metric = spec(chart.key)
    look = style(palette.headline if chosen else palette.label, bold=chosen)
    name = metric.label if metric.label != chart.key else chart.key
    arrow = ARROWS[metric.direction]
    readouts, named = readings(chart, view, palette)
    room = width - 2 - cell_len(name) - cell_len(arrow) - 1
    if len(readouts) <= 3 and width >= 40:
        free = (room - sum(_cells(one) + 2 for one in readouts)) // max(1, len(readouts))
        # the number of seeds goes first, and what they share is not cut
        named = [who if cell_len(who) < free else who.rpartition(", ")[0] or who for who in named]
        whole = not view.bands or all(cell_len(who) < free for who in named)
        if free >= 7 and whole:
            for who, one in zip(named, readouts, strict=True):
                one.insert(1, (clip(who, free - 1) + " ", style(palette.label)))
    right: Line = []
    for one in readouts:
        if _cells(right) + _cells(one) + 2 > room - 1:
            right.append((" …", style(palette.label)))
            break
        right += [("  ", None), *one]
    left: Line = [("▸" if chosen else " ", style(palette.accent)),
                  (clip(name, max(4, width - 4)), look), (arrow, style(palette.label))]  # fmt: skip
    gap = width - _cells(left) - _cells(right)
    return [*left, (" " * max(0, gap), None), *right]


def readings(chart: ChartData, view: View, palette: Palette) -> tuple[list[Line], list[str]]:
    """Each curve's mark and smoothed value at the crosshair, and which run it belongs to.

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
        curves = [curve for run in group if (curve := view.curve(chart.key, run)) is not None]
        mark = view.look(group[0], palette)
        names.append(view.name_of(group))
        known = [smooth_value(curve, view.x) for curve in curves]
        values = [value for value in known if value is not None]
        if not curves:
            found.append([(f"{mark.mark} none", style(palette.label))])
            continue
        value = math.fsum(values) / len(values) if values else None
        reaches = any(view.end(run) >= view.x for run in view.runs if run.id in group)
        chosen = view.chosen is not None and view.chosen.id in group
        front = style(mark.colour if reaches else palette.label, bold=chosen)
        found.append([(f"{mark.mark} ", style(mark.colour, bold=True)),
                      (with_unit(value, unit), front)])  # fmt: skip
    return found, names


def _cells(line: Line) -> int:
    return sum(cell_len(text) for text, _ in line)


def axis_line(view: View, width: int, span: float, palette: Palette) -> Line:
    """The horizontal axis below the charts, with both ends and the crosshair's position."""
    room = width - LABELS
    label = style(palette.label)
    right = place_text(view.axis, span - 1 if view.axis == "step" else span)
    right = right.removeprefix("step ")
    here = place_text(view.axis, view.x)
    column = cross_column(view.x, span, room)
    fits = column + cell_len(here) + 2 <= room
    start = column if fits else max(0, column - cell_len(here) - 1)
    line: Line = [(" " * LABELS, None)]
    if start > 2:
        line += [("0", label), (" " * (start - 1), None)]
    else:
        line.append((" " * start, None))
    line.append((f"▴ {here}" if fits else f"{here} ▴", style(palette.text)))
    rest = room - start - cell_len(here) - 2
    if rest >= cell_len(right) + 2:
        line.append((right.rjust(rest), label))
    return line
