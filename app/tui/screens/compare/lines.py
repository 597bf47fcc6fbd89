"""The tables of runs, settings and metrics on the Compare screen, as lines."""

import math
from collections.abc import Sequence
from typing import Literal

from app.text.comparison import metric_name, points, value_text
from app.text.numbers import seconds, signed, tokens, with_unit
from app.text.safe_text import cell_len, clip, clip_start, pad
from app.tui.looks.colours import Palette, style
from app.tui.screens.compare.verdict import place_text
from app.tui.screens.compare.view import Stat, View
from app.tui.widgets.panel import Line
from app.tui.widgets.top_bar import status_mark
from experiments.compare.values import MetricCell
from experiments.values import RunSummary
from grpo_engine.metrics import spec

NAME = 12
NOISE = 1e-9  # differences that rounding explains
Better = Literal["▲", "▼", " "]


def verdict_mark(key: str, delta: float | None) -> Better:
    """▲ better than the baseline, ▼ worse, blank if the metric has no direction."""
    direction = spec(key).direction
    if not delta or not abs(delta) >= NOISE or direction == "none":
        return " "
    return "▲" if (delta > 0) == (direction == "up") else "▼"


def delta_text(key: str, delta: float | None) -> str:
    """Format a difference to the baseline: `▲ +.13`; percentage points if the metric is a share."""
    if delta is None:
        return ""
    if abs(delta) < NOISE:
        return "  ="
    is_share = spec(key).unit == "share" and math.isfinite(delta)
    return f"{verdict_mark(key, delta)} {f'{points(delta)} pt' if is_share else signed(delta)}"


def stat_of(cell: MetricCell, stat: Stat) -> tuple[float | None, int | None, float | None]:
    """A cell's value, its step and its difference to the baseline."""
    if stat == "best":
        return cell.best, cell.best_step, cell.delta_best
    if stat == "last":
        return cell.last, cell.last_step, cell.delta_last
    return cell.at, cell.at_step, cell.delta_at


# -- runs ---------------------------------------------------------------------------------------


def runs_lines(view: View, width: int, palette: Palette, now: float) -> list[Line]:
    """One row per run: the chosen metric at the crosshair and its best value."""
    label = style(palette.label)
    columns = run_columns(width)
    name = width - 5 - sum(size for _, size in columns)
    here = place_text(view.axis, view.x).removesuffix("ens")
    titles = {"at": here, "best": "best", "last": "last", "delta": f"Δ {view.stat}"}
    head: Line = [(" " * 5 + pad(spec(view.metric).label if view.metric else "", name), label)]
    head += [(pad(titles[kind], size - 1, ">") + " ", label) for kind, size in columns]
    lines = [head]
    for place, run in enumerate(view.runs):
        lines.append(_run_line(view, run, place, columns, name, palette, now))
    return lines


def run_columns(width: int) -> list[tuple[str, int]]:
    """The columns that fit beside the name, with their widths."""
    wanted = [("at", 10), ("best", 12), ("delta", 11), ("last", 9)]
    room = width - 5 - NAME
    kept = []
    for kind, size in wanted:
        if size <= room:
            kept.append((kind, size))
            room -= size
    return kept


def _run_line(
    view: View, run: RunSummary, place: int, columns: Sequence[tuple[str, int]], name: int,
    palette: Palette, now: float,
) -> Line:  # fmt: skip
    here = place == min(view.run, len(view.runs) - 1)
    back = palette.cursor if here else palette.paper
    hidden, based = run.id in view.hidden, view.base is not None and run.id == view.base.id
    look = view.look(run.id, palette)
    front = palette.label if hidden else palette.headline if here else palette.text
    glyph, colour = status_mark(run.status, palette, now)
    state = f" {glyph}" if run.active or run.status in ("failed", "lost") else ""
    line: Line = [
        ("▸" if here else " ", style(palette.focus, back)),
        ("·" if hidden else look.mark, style(palette.label if hidden else look.colour, back,
                                             bold=True)),
        (" ", style(None, back)),
        (pad(view.name(run), name - cell_len(state)), style(front, back)),
        (state, style(colour, back)),
        (" ◆" if based and len(view.runs) > 1 else "  ", style(palette.label, back)),
    ]  # fmt: skip
    cell = view.cell(view.metric, run.id)
    for kind, size in columns:
        text, shade = _run_cell(view, run, kind, cell, palette, based)
        line.append((pad(text, size - 1, ">") + " ", style(shade, back)))
    return line


def _run_cell(
    view: View, run: RunSummary, kind: str, cell: MetricCell | None, palette: Palette, based: bool
) -> tuple[str, int]:
    unit = spec(view.metric).unit if view.metric else ""
    if cell is None or cell.last is None:
        return ("none" if kind == "at" else "–"), palette.label
    if kind == "at":
        value, step = view.value_at_x(view.metric, run.id)
        beyond = view.end(run) < view.x and step is not None
        text = with_unit(value, unit) + (f"@{step}" if beyond else "")
        return text, palette.label if beyond else palette.text
    if kind == "best":
        return f"{with_unit(cell.best, unit)} @{cell.best_step}", palette.text
    if kind == "last":
        return with_unit(cell.last, unit), palette.text
    if based:
        return ("baseline" if len(view.runs) > 1 else "–"), palette.label
    delta = _delta(view, run, cell)
    shade = {"▲": palette.good, "▼": palette.bad}.get(
        verdict_mark(view.metric, delta), palette.text
    )
    return delta_text(view.metric, delta) or "–", shade


def _delta(view: View, run: RunSummary, cell: MetricCell) -> float | None:
    if view.stat != "at" or view.base is None:
        return stat_of(cell, view.stat)[2]
    own, _ = view.value_at_x(view.metric, run.id)
    other, _ = view.value_at_x(view.metric, view.base.id)
    return None if own is None or other is None else own - other


def run_notes(view: View) -> list[str]:
    """Describe missing and non-finite values of the chosen chart."""
    notes = []
    for run in view.runs:
        curve = view.curve(view.metric, run.id)
        name = view.name(run)
        if view.charts is None:
            break
        if curve is None and view.metric:
            notes.append(f"{name} never recorded {view.metric}")
        elif curve is not None and curve.line.gaps:
            notes.append(f"{name}: {curve.line.gaps} of its values are NaN or infinite: gaps")
        if curve is not None and view.log and curve.shape.lost:
            notes.append(f"{name}: values at or below 0 cannot be shown on a log scale")
    short = [
        view.name(run)
        for run in view.runs
        if view.end(run) < view.x and view.curve(view.metric, run.id) is not None
    ]
    if short:
        notes.append(f"{', '.join(short)} ended before: the last value, with its step")
    return notes


# -- settings -----------------------------------------------------------------------------------


def column_window(view: View, room: int, least: int) -> tuple[int, int, int]:
    """First and last run whose columns fit, including the chosen one, and the column width."""
    count = len(view.runs)
    fit = max(1, min(count, room // least))
    first = max(0, min(view.run - fit // 2, count - fit))
    return first, first + fit, room // fit


def brief(view: View, run: RunSummary, room: int) -> str:
    """Shorten a run's name; if all names start alike, keep the end."""
    starts = {view.name(other)[:4] for other in view.runs}
    cut = clip_start if len(starts) == 1 and len(view.runs) > 1 else clip
    return cut(view.name(run), room)


def column_heads(
    view: View, first: int, last: int, size: int, palette: Palette, tail: int = 0
) -> Line:
    """The runs' marks and names over their columns, `tail` cells from the right; ◆ the baseline."""
    line: Line = []
    for place in range(first, last):
        run = view.runs[place]
        look = view.look(run.id, palette)
        based = view.base is not None and view.base.id == run.id and len(view.runs) > 1
        chosen = place == min(view.run, len(view.runs) - 1)
        name = brief(view, run, max(1, size - tail - (5 if based else 3)))
        text = f" {name}{' ◆' if based else ''}"
        front = style(palette.headline if chosen else palette.label, bold=chosen)
        gap = " " * max(0, size - tail - 2 - cell_len(text))
        line += [(gap, None), (look.mark, style(look.colour, bold=True)), (text, front),
                 (" " * (tail + 1), None)]  # fmt: skip
    return line


def settings_lines(view: View, width: int, height: int, palette: Palette) -> list[Line]:
    """One row per setting, one column per run; differences from the baseline are highlighted."""
    rows = view.settings()
    label = style(palette.label)
    if not rows:
        empty = "no setting matches" if view.filter else "all settings are the same"
        return [[(empty, label)], [("s shows them all", label)]]
    path = min(max(len(row[0]) for row in rows), max(16, width * 2 // 5))
    first, last, size = column_window(view, width - path - 1, 10)
    size = min(size, 22)
    more = "" if last - first == len(view.runs) else f"{first + 1}–{last} of {len(view.runs)}"
    head = [(pad(more, path), label), *column_heads(view, first, last, size, palette)]
    base = view.runs.index(view.base) if view.base in view.runs else 0
    lines: list[Line] = [head]
    top = max(0, min(view.row, len(rows) - (height - 1)))
    for name, values, differs in rows[top : top + height - 1]:
        line: Line = [
            (clip_start(name, path).ljust(path), style(palette.text if differs else palette.label))
        ]
        for place in range(first, last):
            same = value_text(values[place]) == value_text(values[base])
            shade = palette.label if not differs else palette.text if same else palette.headline
            text = pad(value_text(values[place]), size - 1, ">") + " "
            line.append((text, style(shade, bold=differs and not same)))
        lines.append(line)
    return lines


# -- metrics ------------------------------------------------------------------------------------


def metrics_lines(view: View, width: int, height: int, palette: Palette) -> list[Line]:
    """One row per metric, one column per run: value, step, difference to the baseline."""
    rows = view.rows
    label = style(palette.label)
    if not rows:
        return [[("no metric matches", label)]]
    name = min(max(cell_len(metric_name(row.key)) for row in rows) + 2, max(18, width // 4))
    first, last, size = column_window(view, width - name - 1, 23)
    size = min(size, 34)
    more = "" if last - first == len(view.runs) else f"{first + 1}–{last} of {len(view.runs)}"
    lines: list[Line] = [
        [(pad(more, name), label), *column_heads(view, first, last, size, palette, tail=10)]
    ]
    here = min(view.row, len(rows) - 1)
    top = max(0, min(here - (height - 1) // 2, len(rows) - (height - 1)))
    for place, row in enumerate(rows[top : top + height - 1], top):
        back = palette.cursor if place == here else palette.paper
        shown = "▸" if row.key in view.metrics else " "
        arrow = {"up": "↑", "down": "↓", "none": " "}[row.direction]
        line: Line = [
            (shown, style(palette.accent, back)),
            (clip_start(metric_name(row.key), name - 2).ljust(name - 2), style(palette.text, back)),
            (arrow, style(palette.label, back)),
        ]
        for cell in row.cells[first:last]:
            line += _metric_cell(row.key, cell, view.stat, size, palette, back)
        used = sum(cell_len(text) for text, _ in line)
        lines.append([*line, (" " * max(0, width - used), style(None, back))])
    return lines


def _metric_cell(
    key: str, cell: MetricCell, stat: Stat, size: int, palette: Palette, back: int
) -> Line:
    value, step, delta = stat_of(cell, stat)
    if value is None:
        return [(pad("–", size), style(palette.label, back))]
    shade = {"▲": palette.good, "▼": palette.bad}.get(verdict_mark(key, delta), palette.label)
    where = f" @{step}" if step is not None else ""
    change = delta_text(key, delta)
    room = max(0, size - 1 - 10)
    number = with_unit(value, spec(key).unit)
    return [
        (pad(number, max(1, room - 7), ">"), style(palette.text, back)),
        (pad(where, 7), style(palette.label, back)),
        (pad(change, 10), style(shade, back)),
        (" ", style(None, back)),
    ]


def work_text(run: RunSummary) -> str:
    """A run's progress: steps, tokens, time."""
    return f"step {run.step} · {tokens(run.tokens)} tokens · {seconds(run.elapsed)}"
