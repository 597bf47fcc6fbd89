"""The Compare screen in words: the sentences on top, and CSV, JSON and Markdown.

These are in the format of `grpo-tui compare`; the curves are a CSV of the charts' stored values,
one row per run and step.
"""

import math
from typing import Any

from grpo_engine.metrics import spec
from grpo_tui.app.text.comparison import comparison_json, flat_rows, value_text
from grpo_tui.app.text.comparison import verdict as verdict_of
from grpo_tui.app.text.numbers import seconds, short
from grpo_tui.app.tui.screens.compare.view import View
from grpo_tui.experiments.export.csv import csv_string, header_of
from grpo_tui.experiments.export.json import json_text
from grpo_tui.experiments.export.markdown import md_cell, table


def verdict(view: View) -> str:
    """Which setting is better and with what confidence, or why that cannot be said."""
    if view.reading:
        return "Reading the runs …"
    found, chosen = view.comparison, view.chosen
    if found is None or chosen is None:
        return ""
    if len(found.runs) == 1:
        newest = ", * the newest sweep" if view.swept else ""
        sweep = newest if chosen.sweep_id is None else ", * its whole sweep"
        return f"Only {view.name(chosen)} is shown. + adds runs to compare it with{sweep}."
    said = verdict_of(found, chosen.id, view.metric)
    if said:
        return said
    own = [note for note in found.notes if chosen.name in note]
    reason = next(
        iter(own), "they have no held-out answers to the same problems (evaluation.every)"
    )
    return f"Which is better cannot be tested: {reason}. {leader(view)}".strip()


def leader(view: View) -> str:
    """The run with the best value of the chosen metric, if best values of it say something."""
    key = view.metric
    if not key or not spec(key).best:
        return ""
    best = [
        (cell.best, run)
        for run in view.runs
        if (cell := view.cell(key, run.id)) and cell.best is not None
        and math.isfinite(cell.best)
    ]  # fmt: skip
    if len(best) < 2:
        return ""
    sign = 1 if spec(key).direction == "up" else -1
    ordered = sorted(best, key=lambda pair: -sign * pair[0])
    (top, run), (other, second) = ordered[0], ordered[1]
    if top == other:
        return f"Best {spec(key).label} is {short(top)} for both." if len(best) == 2 else ""
    return (
        f"Best {spec(key).label}: {view.name(run)} {short(top)}, "
        f"then {view.name(second)} {short(other)}."
    )


def differences(view: View, most: int = 4) -> str:
    """Describe what differs in one line."""
    found = view.comparison
    if view.reading or found is None or len(found.runs) < 2:
        return ""
    if not found.differing:
        return "All settings are the same: what differs is chance or the code."
    parts = []
    for item in found.differing[:most]:
        values = list(dict.fromkeys(value_text(value) for value in item.values))
        some = ", ".join(values[:4]) + (" …" if len(values) > 4 else "")
        parts.append(f"{item.path} ({some})")
    rest = len(found.differing) - most
    return "Differ in " + ", ".join(parts) + (f" and {rest} more" if rest > 0 else "") + "."


def place_text(axis: str, x: float) -> str:
    """Describe the crosshair's position."""
    if axis == "step":
        return f"step {x:.0f}"
    return f"{short(x)} tokens" if axis == "tokens" else seconds(x)


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
            curve.series.steps, curve.positions, curve.series.values, curve.series.average,
            strict=True,
        )
    ]  # fmt: skip
    return csv_string(header, rows)
