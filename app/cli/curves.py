"""Plots in the terminal: one chart per metric, one curve per run."""

import math
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from app.cli.output import cut, wants_colour
from app.feed.series import Series, SeriesView
from app.text.numbers import short
from app.text.safe_text import safe
from experiments.values import MetricSeries
from grpo_engine.metrics import spec

HEIGHT = 14
LEAST_WIDTH = 24
COLOURS = ("blue+", "red+", "green+", "magenta+", "cyan+", "white")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
_PLAIN = str.maketrans("─│┌┐└┘┤├┬┴┼−", "-|+++++++++-")  # plotext's frame and our minus sign


class Canvas(NamedTuple):
    """Properties of the output that a chart depends on."""

    width: int = 80
    colour: bool = False
    unicode: bool = True


def terminal() -> Canvas:
    """Return the canvas for stdout: its width, and no colour in a pipe."""
    encoding = (getattr(sys.stdout, "encoding", "") or "ascii").lower().replace("-", "")
    plain = os.environ.get("TERM") in ("dumb", "linux") and sys.stdout.isatty()
    return Canvas(
        width=max(LEAST_WIDTH, shutil.get_terminal_size().columns),
        colour=wants_colour() and os.environ.get("TERM") != "dumb",
        unicode=encoding == "utf8" and not plain,
    )


def metric_chart(
    key: str, read: Iterable[tuple[str, MetricSeries]], canvas: Canvas, *, smooth: float = 0.0,
    height: int = HEIGHT,
) -> list[str]:  # fmt: skip
    """Return the lines of a metric's chart; `read` has each run's name and stored values."""
    curves = []
    for name, stored in read:
        series = Series(smooth)
        for step, value in zip(stored.steps, stored.values, strict=True):
            series.push(step, value)
        curves.append((name, series.view()))
    label = spec(key).label
    title = key if label == key else f"{label} ({key})"
    return chart(title, curves, canvas, smooth=smooth > 0, height=height)


def chart(
    title: str, curves: Sequence[tuple[str, SeriesView]], canvas: Canvas, *,
    smooth: bool = False, height: int = HEIGHT,
) -> list[str]:  # fmt: skip
    """Return the lines of a chart: title, a line per run with its last value, curves.

    Runs differ by colour, or by letter without colour or with more runs than colours.
    """
    import plotext

    drawn = [(name, view, points(view, smooth)) for name, view in curves if view.count]
    if not drawn:
        return [f"{safe(title)}: no numbers"]
    lettered = len(drawn) > (len(COLOURS) if canvas.colour else 1)
    plotext.clear_figure()
    plotext.limit_size(False, False)
    plotext.plot_size(canvas.width, height)
    plotext.theme("clear")
    head = [cut(safe(title), canvas.width)]
    for place, (name, view, (steps, values)) in enumerate(drawn):
        letter, colour = LETTERS[place % len(LETTERS)], COLOURS[place % len(COLOURS)]
        marker = letter if lettered else "braille" if canvas.unicode else "*"
        plotext.plot(steps, values, marker=marker, color=colour if canvas.colour else "default")
        mark = letter if lettered else "━" if canvas.unicode else "*"
        text = f" {safe(name)}  {short(view.value if smooth else view.last, 3)}"
        mark = plotext.colorize(mark, colour) if canvas.colour else mark
        head.append(mark + cut(text, canvas.width - 1))
    _ticks(plotext, [item for _, _, item in drawn])
    body = plotext.build() if canvas.colour else plotext.uncolorize(plotext.build())
    lines = [*head, *(line.rstrip() for line in body.rstrip("\n").split("\n"))]
    return lines if canvas.unicode else [_ascii(line) for line in lines]


def _ascii(line: str) -> str:
    return line.translate(_PLAIN).encode("ascii", "backslashreplace").decode()


def points(view: SeriesView, smooth: bool) -> tuple[list[int], list[float]]:
    """Return the points of a curve: the smoothed values, or the range of each bucket of steps.

    A curve with few values, such as that of evaluations, is never smoothed.
    """
    steps: list[int] = []
    values: list[float] = []
    columns = (view.smooth,) if smooth and not view.sparse else (view.low, view.high)
    for place, step in enumerate(view.steps()):
        for value in dict.fromkeys(column[place] for column in columns):
            if math.isfinite(value):
                steps.append(step)
                values.append(value)
    return steps, values


def _ticks(plotext: Any, drawn: Sequence[tuple[list[int], list[float]]]) -> None:
    """Set ticks: whole steps on the x axis, short numbers on the y axis."""
    first = min(steps[0] for steps, _ in drawn)
    last = max(steps[-1] for steps, _ in drawn)
    at = sorted({first + (last - first) * part // 4 for part in range(5)})
    plotext.xticks(at, [str(step) for step in at])
    low = min(min(values) for _, values in drawn)
    high = max(max(values) for _, values in drawn)
    if low == high:
        low, high = low - 0.5, high + 0.5
    plotext.ylim(low, high)
    levels = [low + (high - low) * part / 4 for part in range(5)]
    plotext.yticks(levels, [short(level, 3) for level in levels])
