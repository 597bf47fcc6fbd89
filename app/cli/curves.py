"""Plots in the terminal: one chart per metric, one curve per run."""

import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from math import inf, isfinite
from typing import Any, NamedTuple

from grpo_engine.metrics import natural_range, spec
from grpo_tui.app.cli.output import cut, uses_colour
from grpo_tui.app.feed.series import SeriesView, series_of
from grpo_tui.app.text.axes import axis
from grpo_tui.app.text.numbers import short
from grpo_tui.app.text.safe_text import safe
from grpo_tui.experiments.values import MetricSeries

HEIGHT = 14
LEAST_WIDTH = 24
COLOURS = ("blue+", "red+", "green+", "magenta+", "cyan+", "white")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
Points = tuple[list[int], list[float]]
_PLAIN = str.maketrans("─│┌┐└┘┤├┬┴┼−", "-|+++++++++-")  # plotext's frame and our minus sign


class Canvas(NamedTuple):
    """Properties of the output that a chart depends on."""

    width: int = 80
    colour: bool = False
    unicode: bool = True


def terminal() -> Canvas:
    """Return the canvas for stdout: its width, and no colour in a pipe."""
    encoding = str(getattr(sys.stdout, "encoding", None)).lower().replace("-", "")
    plain = os.environ.get("TERM") in ("dumb", "linux") and sys.stdout.isatty()
    return Canvas(
        width=max(LEAST_WIDTH, shutil.get_terminal_size().columns),
        colour=uses_colour() and os.environ.get("TERM") != "dumb",
        unicode=encoding == "utf8" and not plain,
    )


def metric_chart(
    key: str, read: Iterable[tuple[str, MetricSeries]], canvas: Canvas, *, smooth: float = 0.0,
    height: int = HEIGHT,
) -> list[str]:  # fmt: skip
    """Return the lines of a metric's chart; `read` has each run's name and stored values."""
    curves = []
    for name, stored in read:
        series = series_of(key, smooth)
        for step, value in zip(stored.steps, stored.values, strict=True):
            series.push(step, value)
        curves.append((name, series.view()))
    label = spec(key).label
    title = key if label == key else f"{label} ({key})"
    return chart(title, curves, canvas, key=key, smooth=smooth > 0, height=height)


def chart(
    title: str, curves: Sequence[tuple[str, SeriesView]], canvas: Canvas, *,
    key: str, smooth: bool, height: int = HEIGHT,
) -> list[str]:  # fmt: skip
    """Return the lines of a chart: title, a line per run with its last value, curves.

    Runs differ by colour, or by letter without colour or with more runs than colours.
    """
    import plotext

    visible = [(name, view, lines_of(view, smooth)) for name, view in curves if view.count]
    if not visible:
        return [f"{safe(title)}: no numbers"]
    lettered = len(visible) > (len(COLOURS) if canvas.colour else 1)
    plotext.clear_figure()
    plotext.limit_size(False, False)
    plotext.plot_size(canvas.width, height)
    plotext.theme("clear")
    head = [cut(safe(title), canvas.width)]
    for index, (name, view, lines) in enumerate(visible):
        letter, colour = LETTERS[index % len(LETTERS)], COLOURS[index % len(COLOURS)]
        marker = letter if lettered else "braille" if canvas.unicode else "*"
        for steps, values in lines:
            plotext.plot(steps, values, marker=marker, color=colour)
        mark = letter if lettered else "━" if canvas.unicode else "*"
        text = f" {safe(name)}  {short(view.value if smooth else view.last, 3)}"
        mark = plotext.colorize(mark, colour) if canvas.colour else mark
        head.append(mark + cut(text, canvas.width - 1))
    _ticks(plotext, [line for _, _, lines in visible for line in lines], key, canvas.width)
    body = plotext.build() if canvas.colour else plotext.uncolorize(plotext.build())
    rows = [*head, *(row.rstrip() for row in body.splitlines())]
    return rows if canvas.unicode else [_ascii(row) for row in rows]


def _ascii(line: str) -> str:
    return line.translate(_PLAIN).encode("ascii", "backslashreplace").decode()


def lines_of(view: SeriesView, smooth: bool) -> list[Points]:
    """Return a curve as lines between gaps: of smoothed values, or of each bucket's range.

    A curve with few values, such as that of evaluations, is never smoothed; its steps without a
    value are no gaps.
    """
    segments: list[Points] = [([], [])]
    columns = (view.smooth,) if smooth and not view.sparse else (view.low, view.high)
    for index, step in enumerate(view.steps()):
        steps, values = segments[-1]
        finite = [value for value in dict.fromkeys(c[index] for c in columns) if isfinite(value)]
        is_gap = not view.sparse or view.low[index] == inf
        if not finite and is_gap and steps:
            segments.append(([], []))
        steps += [step] * len(finite)
        values += finite
    return [line for line in segments if line[0]]


def _ticks(plotext: Any, lines: Sequence[Points], key: str, width: int) -> None:
    """Set ticks: whole steps on the x axis, round numbers on the y axis."""
    first = min(steps[0] for steps, _ in lines)
    last = max(steps[-1] for steps, _ in lines)
    parts = max(1, min(4, (width - 10) // (len(str(last)) + 2) - 1))
    at = sorted({first + (last - first) * part // parts for part in range(parts + 1)})
    plotext.xticks(at, [str(step) for step in at])
    values = [value for _, line in lines for value in (min(line), max(line))]
    scale = axis(values, unit=spec(key).unit, natural=natural_range(key), labels=5)
    plotext.ylim(scale.low, scale.high)
    plotext.yticks(*map(list, zip(*scale.labels, strict=True)))
