"""The Compare screen as text: CSV, JSON and Markdown in the format of `grpo-tui compare`.

The curves are a separate CSV of the charts' stored values, one row per run and step.
"""

from typing import Any

from app.text.comparison import comparison_json, flat_rows
from app.tui.screens.compare.verdict import differences, verdict
from app.tui.screens.compare.view import View
from experiments.export.csv import csv_string, header_of
from experiments.export.json import json_text
from experiments.export.markdown import md_cell, table


def as_json(view: View) -> str:
    """The comparison as the command prints it, and the charts' contents."""
    if view.comparison is None:
        return ""
    shown = {
        "verdict": verdict(view),
        "charts": [chart.key for chart in view.charts.charts] if view.charts else [],
        "axis": view.axis,
        "crosshair": view.x,
        "smoothing": view.smoothing,
        "at_crosshair": {
            key: {run.id: view.value_at_x(key, run.id)[0] for run in view.runs}
            for key in (chart.key for chart in (view.charts.charts if view.charts else ()))
        },
    }
    whole = comparison_json(view.comparison, view.everything) | {"shown": shown}
    return json_text(whole, indent=2) + "\n"


def _rows(view: View) -> list[dict[str, Any]]:
    return flat_rows(view.comparison, view.everything) if view.comparison else []


def as_csv(view: View) -> str:
    """Settings and metrics as CSV: kind, key, statistic, and one column per run."""
    rows = _rows(view)
    return csv_string(header_of(rows), rows)


def as_markdown(view: View) -> str:
    """The verdict, what differs, and tables of the charted metrics and of all metrics."""
    if view.comparison is None:
        return ""
    names = [view.name(run) for run in view.runs]
    lines = [f"# {' · '.join(map(md_cell, names))}", ""]
    lines += [md_cell(verdict(view)), "", md_cell(differences(view)), ""]
    first = ("kind", "key", "of")
    header = [*first, *(run.id for run in view.runs)]
    lines += table(header, _rows(view)[1:], titles=[*first, *names])
    return "\n".join(lines) + "\n"


def curves_csv(view: View) -> str:
    """The stored values of the charts, with tokens and seconds if known."""
    if view.charts is None:
        return ""
    header = ["run", "name", "metric", "step", view.axis, "value", "smoothed"]
    header = list(dict.fromkeys(header))
    shown = {run.id: run for run in view.drawn}
    rows = [
        {
            "run": curve.run, "name": shown[curve.run].name, "metric": chart.key, "step": step,
            view.axis: place, "value": value, "smoothed": smooth,
        }
        for chart in view.charts.charts
        for curve in chart.curves
        if curve.run in shown
        for step, place, value, smooth in zip(
            curve.line.steps, curve.positions, curve.line.values, curve.line.smooth, strict=True
        )
    ]  # fmt: skip
    return csv_string(header, rows)
