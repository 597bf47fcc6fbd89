"""Curves in the shell, drawn as on the screens: one chart per metric, one curve per run."""

import os
import shutil
import sys
from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple

from grpo_engine.metrics import spec
from grpo_tui.app.charts.series import Series, cut
from grpo_tui.app.cli.output import uses_colour, writes_unicode
from grpo_tui.app.text.numbers import MINUS, short
from grpo_tui.app.text.safe_text import clip, safe
from grpo_tui.experiments.values import MetricSeries

HEIGHT = 14
LEAST_WIDTH = 24
COLOURS = (12, 9, 10, 13, 14, 15)  # of 256: blue, red, green, magenta, cyan, white
LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Canvas(NamedTuple):
    """Properties of the output that a chart depends on."""

    width: int = 80
    colour: bool = False
    unicode: bool = True

    def paint(self, text: str, run: int | None) -> str:
        """Colour a text as the curve of a run."""
        if run is None or not self.colour:
            return text
        return f"\x1b[38;5;{COLOURS[run % len(COLOURS)]}m{text}\x1b[0m"


def terminal() -> Canvas:
    """Return the canvas for stdout: its width, and no colour in a pipe."""
    plain = os.environ.get("TERM") in ("dumb", "linux") and sys.stdout.isatty()
    return Canvas(
        width=max(LEAST_WIDTH, shutil.get_terminal_size().columns),
        colour=uses_colour() and os.environ.get("TERM") != "dumb",
        unicode=writes_unicode() and not plain,
    )


def metric_chart(
    key: str,
    read: Iterable[tuple[str, MetricSeries]],
    canvas: Canvas,
    *,
    smooth: float = 0.0,
    height: int = HEIGHT,
) -> list[str]:
    """Return the lines of a metric's chart; `read` has each run's name and stored values.

    There is a title, a line per run with its last value, and the curves. Runs differ by colour, or
    by letter without colour or with more runs than colours.
    """
    from grpo_tui.app.tui.looks.colours import DARK, PALETTES
    from grpo_tui.app.tui.widgets.charts.plot import LABELS, Curve, axis_of, plot

    label = spec(key).label
    title = safe(key if label == key else f"{label} ({key})")
    runs = [(name, Series.of(key, stored.steps, stored.values, smooth)) for name, stored in read]
    runs = [(name, series) for name, series in runs if series.count]
    if not runs:
        return [f"{title}: no numbers"]
    lettered = len(runs) > (len(COLOURS) if canvas.colour else 1)
    first = min(series.steps[0] for _, series in runs)
    last = max(series.last_step for _, series in runs)
    wide = canvas.width - LABELS
    curves = [
        Curve(cut(series, series.steps, last - first, 2 * wide, first), index)
        for index, (_, series) in enumerate(runs)
    ]
    scale = axis_of(key, curves, height)

    def mark(run: int, usual: str) -> str:
        return LETTERS[run % len(LETTERS)] if lettered else usual if canvas.unicode else "*"

    lines = [clip(title, canvas.width)]
    for index, (name, series) in enumerate(runs):
        text = clip(f" {safe(name)}  {short(series.value, 3)}", canvas.width - 1)
        lines.append(canvas.paint(mark(index, "━"), index) + text)
    rows = plot(curves, scale, wide, height, PALETTES[DARK])
    for margin, row in zip(scale.margin(height), rows, strict=True):
        line = margin
        for run, cells in groupby(row, key=lambda cell: cell[1]):
            signs = (sign if run is None else mark(run, sign) for sign, *_ in cells)
            line += canvas.paint("".join(signs), run)
        lines.append(line.rstrip())
    ends = f"{' ' * LABELS}step {first}"
    lines.append(ends + f" {last}".rjust(canvas.width - len(ends)) * (last > first))
    return lines if canvas.unicode else [_ascii(line) for line in lines]


def _ascii(line: str) -> str:
    return line.replace(MINUS, "-").encode("ascii", "backslashreplace").decode()
