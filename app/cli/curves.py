"""Plots in the terminal: one chart per metric, one curve per run."""

import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from itertools import chain, cycle, groupby
from math import isfinite
from string import ascii_lowercase
from typing import NamedTuple

from grpo_engine.metrics import natural_range, spec
from grpo_tui.app.charts.axis import axis
from grpo_tui.app.charts.series import Series, cut
from grpo_tui.app.cli.output import uses_colour, writes_unicode
from grpo_tui.app.text.numbers import short
from grpo_tui.app.text.safe_text import clip, safe
from grpo_tui.experiments.values import MetricSeries

HEIGHT = 14
MIN_WIDTH = 24
COLOURS = ("blue+", "red+", "green+", "magenta+", "cyan+", "white")
Points = tuple[list[float], list[float]]
_PLAIN = str.maketrans("─│┌┐└┘┤├┬┴┼−", "-|+++++++++-")  # plotext's frame and our minus sign


class ChartOptions(NamedTuple):
    """Properties of the output that a chart depends on."""

    width: int = 80
    colour: bool = False
    unicode: bool = True


def terminal() -> ChartOptions:
    """Return the canvas for stdout: its width, and no colour in a pipe."""
    plain = os.environ.get("TERM") in ("dumb", "linux") and sys.stdout.isatty()
    return ChartOptions(
        width=max(MIN_WIDTH, shutil.get_terminal_size().columns),
        colour=uses_colour() and os.environ.get("TERM") != "dumb",
        unicode=writes_unicode() and not plain,
    )


def metric_chart(
    key: str, read: Iterable[tuple[str, MetricSeries]], canvas: ChartOptions, *, smooth: float = 0.0
) -> list[str]:
    """Return the lines of a metric's chart; `read` has each run's name and stored values.

    There is a title, a line per run with its last value, and the curves. Runs differ by colour, or
    by letter without colour or with more runs than colours.
    """
    import plotext

    label = spec(key).label
    title = safe(key if label == key else f"{label} ({key})")
    runs = [(name, Series.of(key, stored.steps, stored.values, smooth)) for name, stored in read]
    runs = [(name, series) for name, series in runs if series.count]
    if not runs:
        return [f"{title}: no numbers"]
    lettered = len(runs) > (len(COLOURS) if canvas.colour else 1)
    plotext.terminal.limit(False, False)
    figure = plotext.figure.clear()
    figure.theme("simple" if canvas.colour else "colorless").plot_size(canvas.width, HEIGHT)
    lines = [clip(title, canvas.width)]
    for (name, series), letter, colour in zip(runs, cycle(ascii_lowercase), cycle(COLOURS)):
        marker = letter if lettered else "braille" if canvas.unicode else "*"
        for steps, values in lines_of(series, 2 * canvas.width):
            signal = figure.signal(steps, values, marker=plotext.marker(marker, colour))
            figure.draw(signal.lines())
        mark = letter if lettered else "━" if canvas.unicode else "*"
        text = f" {safe(name)}  {short(series.value, 3)}"
        mark = str(plotext.colorize(mark, colour)) if canvas.colour else mark
        lines.append(mark + clip(text, canvas.width - 1))
    points = (zip(series.steps, series.line, strict=True) for _, series in runs)
    finite_steps = [step for step, value in chain.from_iterable(points) if isfinite(value)]
    ticks = step_ticks(min(finite_steps), max(finite_steps), canvas.width)
    figure.ruler("x").ticks(ticks, list(map(str, ticks)))
    curves = chain.from_iterable(series.line for _, series in runs)
    scale = axis(curves, unit=spec(key).unit, natural=natural_range(key), labels=5)
    y = figure.ruler("y").lim(scale.low, scale.high)
    y.ticks(*map(list, zip(*scale.labels, strict=True)))
    body = str(figure.build())
    body = body if canvas.colour else plotext.uncolorize(body)
    lines += (row.rstrip() for row in body.splitlines())
    if canvas.unicode:
        return lines
    return [line.translate(_PLAIN).encode("ascii", "backslashreplace").decode() for line in lines]


def lines_of(series: Series, columns: int) -> list[Points]:
    """Return a curve with values as lines between gaps, reduced to what `wide` columns show."""
    first = series.steps[0]
    span = (series.last_step - first) or 1
    points: Iterable[tuple[float, float]] = zip(series.steps, series.line, strict=True)
    if len(series.steps) > columns:
        points = (
            (round(first + item.x * span / (columns - 1)), value)
            for item in cut(series, series.steps, span, columns, first).columns
            for value in item.line
        )
    groups = groupby(points, key=lambda point: isfinite(point[1]))
    lines = (list(zip(*group, strict=True)) for is_finite, group in groups if is_finite)
    return [(list(steps), list(values)) for steps, values in lines]


def step_ticks(first: int, last: int, width: int) -> Sequence[int]:
    """The steps with a label: both ends, and as many between them as fit."""
    parts = max(1, min(4, (width - 10) // (len(str(last)) + 2) - 1))
    return sorted({first + (last - first) * part // parts for part in range(parts + 1)})
