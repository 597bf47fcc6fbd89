"""Charts in the terminal: one per metric, with a curve per run."""

import os
import re
import shutil
import sys
from collections.abc import Iterable
from string import ascii_lowercase
from typing import NamedTuple

from grpo_engine.metrics import spec
from grpo_tui.app.charts.series import Series, cut
from grpo_tui.app.cli.output import uses_colour, writes_unicode
from grpo_tui.app.text.numbers import MINUS, short
from grpo_tui.app.text.safe_text import clip, safe
from grpo_tui.app.tui.widgets.charts.plot import (
    LABELS,
    Curve,
    axis_line,
    axis_of,
    plot,
    plot_lines,
)
from grpo_tui.experiments.values import MetricSeries

HEIGHT = 12
LEAST_WIDTH = 24
COLOURS = ("94", "91", "92", "95", "96", "97")  # bright ones, as the terminal numbers them
BRAILLE = re.compile("[\u2800-\u28ff]")


class Canvas(NamedTuple):
    """Properties of the output that a chart depends on."""

    width: int = 80
    colour: bool = False
    unicode: bool = True


def terminal() -> Canvas:
    """Return the canvas for stdout: its width, and no colour in a pipe."""
    plain = os.environ.get("TERM") in ("dumb", "linux") and sys.stdout.isatty()
    return Canvas(
        width=max(LEAST_WIDTH, shutil.get_terminal_size().columns),
        colour=uses_colour() and os.environ.get("TERM") != "dumb",
        unicode=writes_unicode() and not plain,
    )


def metric_chart(
    key: str, read: Iterable[tuple[str, MetricSeries]], canvas: Canvas, *, smooth: float = 0.0,
    height: int = HEIGHT,
) -> list[str]:  # fmt: skip
    """Return the lines of a metric's chart; `read` has each run's name and stored values.

    There is a title, a line per run with its last value, and the curves. Runs differ by colour, or
    by letter without colour or with more runs than colours.
    """
    label = spec(key).label
    title = clip(safe(key if label == key else f"{label} ({key})"), canvas.width)
    runs = [(name, Series.of(key, stored.steps, stored.values, smooth)) for name, stored in read]
    runs = [(name, series) for name, series in runs if series.count]
    if not runs:
        return [f"{title}: no numbers"]
    lettered = len(runs) > (len(COLOURS) if canvas.colour else 1)
    first = min(series.steps[0] for _, series in runs)
    last = max(series.last_step for _, series in runs)
    width = canvas.width - LABELS
    lines, curves = [[(title, "")]], []
    for index, (name, series) in enumerate(runs):
        colour = COLOURS[index % len(COLOURS)]
        mark = ascii_lowercase[index % len(ascii_lowercase)] if lettered else ""
        trace = cut(series, series.steps, last - first, 2 * width, first)
        curves.append(Curve(trace, colour, mark))
        text = clip(f" {safe(name)}  {short(series.value, 3)}", canvas.width - 1)
        lines.append([(mark or "━", colour), (text, "")])
    scale = axis_of(key, curves, height)
    lines += plot_lines(plot(curves, scale, width, height), scale)
    lines.append(axis_line(f"step {last:.0f}", canvas.width, first))
    return [_printed(line, canvas).rstrip() for line in lines]


def _printed(line: Iterable[tuple[str, str]], canvas: Canvas) -> str:
    """A line as this output can show it."""
    result = ""
    for part, style in line:
        text, colour = part, style.removeprefix("bold ")
        if not canvas.unicode:
            text = BRAILLE.sub("*", text).replace("━", "*").replace(MINUS, "-")
            text = text.encode("ascii", "backslashreplace").decode()
        if canvas.colour and colour in COLOURS:
            text = f"\x1b[{colour}m{text}\x1b[0m"
        result += text
    return result
