"""Figures for papers through matplotlib: a panel for each metric, a line for each setting.

Lines differ in lightness and in dashes as well as in colour, so that they are told apart in grey
and by the colour-blind.
"""

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from math import isnan, nan
from pathlib import Path
from typing import Any

from grpo_engine.errors import EngineError
from grpo_engine.metrics import spec
from grpo_tui.app.charts.lines import Curve
from grpo_tui.app.text.safe_text import clip, safe

FORMATS = (".svg", ".png", ".pdf")
COLUMNS, PANEL = 3, (2.9, 2.1)  # panels beside each other, and inches of one
NAME = 48  # cells of a line's name
LARGEST = 1e250  # matplotlib's axes overflow shortly before the largest float
# colours by Okabe and Ito, dark to light, and dashes
LINES = (
    ("#000000", "-"),
    ("#0072B2", "--"),
    ("#D55E00", "-."),
    ("#009E73", ":"),
    ("#CC79A7", (0, (6, 1, 1, 1, 1, 1))),
    ("#E69F00", (0, (8, 2))),
)
STYLE: Mapping[str, Any] = {
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "grid.linewidth": 0.4,
    "grid.color": "#dddddd",
    "lines.linewidth": 1.3,
    "legend.frameon": False,
    "legend.handlelength": 3.0,
    "path.simplify": False,  # each stored number is a point of the file
    "svg.fonttype": "none",
    "svg.hashsalt": "grpo-tui",
    "pdf.fonttype": 42,
    "savefig.dpi": 300,
}

AXES = {"step": "training step", "tokens": "tokens", "wall": "training time (s)"}

Curves = Mapping[str, Mapping[str, Curve]]  # by metric and by the name of a line


class PlotsMissingError(EngineError):
    """The package that draws figures is not installed."""


def save(
    curves: Curves, out: Path, format: str, axis: str = "step", log: Collection[str] = ()
) -> None:
    """Draw the figure and write it, without the time: the same numbers give the same file.

    The metrics of `log` have a logarithmic axis.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlotsMissingError(
            f"figures need the package matplotlib ({error}): pip install 'grpo-tui[plots]'"
        ) from error
    columns = min(COLUMNS, len(curves))
    rows = -(-len(curves) // columns)
    style: Any = STYLE  # stubs of matplotlib name each key
    with matplotlib.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a box is drawn in its place
        figure = Figure(figsize=(PANEL[0] * columns, PANEL[1] * rows + 0.3), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False).flat
        names = list(dict.fromkeys(name for by_name in curves.values() for name in by_name))
        handles: dict[str, Any] = {}
        for panel, (key, by_name) in zip(panels, curves.items(), strict=False):
            panel.set_xlabel(AXES[axis])
            panel.set_yscale("log" if key in log else "linear")
            handles |= _draw(panel, key, by_name, names)
        for panel in list(figure.axes)[len(curves) :]:
            panel.remove()
        if len(names) > 1:
            texts = [clip(name, NAME) for name in handles]
            legend = figure.legend(
                handles.values(), texts, loc="outside upper center", ncols=min(4, len(texts))
            )
            for text in legend.get_texts():
                text.set_parse_math(False)
        times = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
        figure.savefig(out, format=format, metadata=times.get(format, {}))


def _draw(
    panel: Any, key: str, by_name: Mapping[str, Curve], names: Sequence[str]
) -> dict[str, Any]:
    """Draw the lines of a metric with their bands; return them by name."""
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    metric = spec(key)
    percent = metric.unit == "share" and panel.get_yscale() == "linear"
    unit = metric.unit if metric.unit != "share" else "%" * percent
    label = f"{metric.label} ({unit})" if unit else metric.label
    panel.set_ylabel(safe(label), parse_math=False)
    panel.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    if percent:
        panel.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=""))
    handles = {}
    curves = {name: _drawable(curve) for name, curve in by_name.items()}
    if any(curve is not by_name[name] for name, curve in curves.items()):
        panel.set_title(f"values beyond ±{LARGEST:g} are not drawn", fontsize=6)
    for name, curve in curves.items():
        colour, dashes = LINES[names.index(name) % len(LINES)]
        few = "o" if len(curve.steps) <= 12 else None
        style = {"color": colour, "linestyle": dashes, "marker": few, "markersize": 2.5}
        (handles[name],) = panel.plot(curve.steps, curve.values, gid=f"{key} {name}", **style)
        if curve.has_interval:
            panel.fill_between(curve.steps, curve.low, curve.high, color=colour, alpha=0.15, lw=0)
        elif list(curve.low) != list(curve.values):  # the values that the curve smooths
            panel.plot(curve.steps, curve.low, color=colour, alpha=0.4, lw=0.5)
    return handles


def _drawable(curve: Curve) -> Curve:
    """The curve with gaps for values that are too large; the same curve if there are none."""
    drawn = {"values": curve.values, "low": curve.low, "high": curve.high}
    if not any(abs(value) > LARGEST for values in drawn.values() for value in values):
        return curve
    gaps = {
        name: [nan if abs(value) > LARGEST else value for value in values]
        for name, values in drawn.items()
    }
    return replace(curve, **gaps)


def header(axis: str = "step") -> tuple[str, ...]:
    """The columns of a figure's numbers."""
    return "metric", "name", axis, "value", "smoothed", "low", "high"


def rows(curves: Curves, axis: str = "step") -> Iterator[dict[str, Any]]:
    """The numbers of a figure: a row for each point.

    `smoothed`, `low` and `high` are empty where nothing is smoothed or there is no interval.
    """
    for key, by_name in curves.items():
        for name, curve in by_name.items():
            drawn = curve.values, curve.low, curve.high
            points = zip(curve.steps, curve.recorded, *drawn, strict=True)
            for at, value, line, low, high in points:
                yield {
                    "metric": key,
                    "name": name,
                    axis: at,
                    "value": None if isnan(value) else value,
                    "smoothed": line if line != value and not isnan(line) else None,
                    "low": low if curve.has_interval and not isnan(low) else None,
                    "high": high if curve.has_interval and not isnan(high) else None,
                }
