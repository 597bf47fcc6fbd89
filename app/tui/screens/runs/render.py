"""Runs as text: the table and its columns, the preview of a run, and the exports."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from grpo_engine.metrics import spec
from grpo_tui.app.charts.series import Series
from grpo_tui.app.text import run_columns
from grpo_tui.app.text.numbers import moment, seconds, tokens, with_unit
from grpo_tui.app.text.run_columns import FIRST, HEALTH_COLOURS, NAME, RunColumn, added
from grpo_tui.app.text.run_text import files_text
from grpo_tui.app.text.safe_text import cell_len, clip, pad, safe
from grpo_tui.app.text.words import count_of, step_of
from grpo_tui.app.tui.screens.runs.state import (
    Preview,
    RunsView,
    TableRow,
)
from grpo_tui.app.tui.widgets.charts.plot import (
    LABELS,
    Curve,
    axis_line,
    chart_cells,
    plot_lines,
)
from grpo_tui.app.tui.widgets.panel import (
    Line,
    aligned,
    card,
    cells,
    justified,
    labelled,
    list_row,
    meter,
    paragraph,
)
from grpo_tui.app.tui.widgets.top_bar import severity_mark, status_mark
from grpo_tui.experiments.values import (
    MetricSeries,
    RunSummary,
    column_label,
)

CARD = (
    ("⏎", "two-minute starter run", "a built-in model learns arithmetic on this machine"),
    ("P", "play the recorded run", "needs nothing, not even MLX"),
    ("2", "a run of your own", "choose model, task and settings"),
)
CHART_HEIGHT = 4
DATE = re.compile(r"^\d{4}-\d\d-\d\dT(\d\d:\d\d:\d\d)\S*")  # of a line of the log

# -- columns ------------------------------------------------------------------------------------


MAX_NAME = 30
MIN_SETTING = 8  # cells of a setting that differs, whose title is then cut
COLUMNS = tuple(column for column in run_columns.COLUMNS if column.width)
BESIDE = ("evaluation.", "checkpoint.", "alerts.", "stop_when")
SHOWN_AS = {
    "model.path": "model",
    "task.name": "task",
    "algorithm.recipe": "recipe",
    "steps": "steps",
}


def fitting(width: int, view: RunsView) -> tuple[RunColumn, ...]:
    """The columns that fit, the most important first, whatever the runs are sorted by.

    After those of `FIRST` come the user's, then the settings that differ, then the others; tags
    only if there are any.
    """
    longest = max((cell_len(run.title + _place(run, view)) for run in view.runs), default=0)
    name = replace(NAME, width=max(NAME.width, min(MAX_NAME, longest + 2)))  # with its sign
    optional = [column for column in COLUMNS if column not in FIRST]
    axes = {SHOWN_AS[path] for path in view.axes if path in SHOWN_AS}
    # settings of training first, then the seed, then what only measures or saves
    paths = sorted(view.axes, key=lambda path: (path.startswith(BESIDE), path == "seed"))
    columns = [
        name,
        *FIRST[1:],
        *map(added, view.columns),
        *(added(f"={path}") for path in paths if path not in SHOWN_AS),
        *sorted(optional, key=lambda column: column.title not in axes),
    ]
    by_key = {(column.title, column.key): column for column in columns}
    if not any(run.tags for run in view.runs):
        del by_key["tags", ""]
    left, chosen = width - 2, list[RunColumn]()
    for column in by_key.values():
        if column.key.startswith("=") and column.width >= left > MIN_SETTING:
            column = replace(column, width=left - 1)
        if column.width < left:
            chosen.append(column)
            left -= column.width + 1
        elif column is name or column in FIRST:
            break  # what comes later matters less
    return tuple(chosen)


def column_at(columns: Sequence[RunColumn], x: int) -> RunColumn | None:
    """The column whose title is at a position of the first line."""
    ends = accumulate(column.width + 1 for column in columns)
    at = (column for column, end in zip(columns, ends, strict=True) if 0 <= x - 2 < end)
    return next(at, None)


# -- the table ----------------------------------------------------------------------------------


def table_note(view: RunsView) -> str:
    """How many runs there are and why some are hidden, for the frame."""
    runs = count_of(len(view.runs), "run")
    parts = (
        f"filter {view.filter}" * bool(view.filter),
        "archived too" * view.archived,
        f"by {column_label(view.group)}" * bool(view.group),
        f"{len(view.marked)} marked" * bool(view.marked),
        f"{view.queued} in the queue (Q)" * bool(view.queued),
        f"{view.deleted} deleted (u)" * bool(view.deleted),
        f"the first {runs}, / finds others" if view.more else runs,
    )
    return " · ".join(filter(None, parts))


def table_lines(view: RunsView, top: int, width: int, height: int) -> list[Line]:
    """The titles and the rows from `top` on."""
    columns = fitting(width, view)
    lines = [head_line(columns, view.sort)]
    if view.starting:
        name = clip(safe(view.starting), width - 15)
        lines.append([("  ◌ ", "live"), (name, "headline"), ("  starting", "live")])
    for index, row in enumerate(view.rows[top : top + height - len(lines)], top):
        line = run_line(row.run, columns, view) if row.run else _heading(row, view)
        if (selected := index == view.cursor) and row.run:  # headings have a sign of their own
            line[0] = ("▸" + line[0][0][1:], line[0][1])
        lines.append(list_row(line, width, selected=selected))
    if not (view.rows or view.starting):
        lines.append([("No run matches; esc ends the search.", "label")])
    return lines


def head_line(columns: Sequence[RunColumn], sort: str) -> Line:
    """The column titles, with an arrow on the sort column."""
    line = [("  ", "")]
    for column in columns:
        is_sorted = sort.lstrip("-") == column.key
        arrow = ("▾" if sort.startswith("-") else "▴") * is_sorted
        text = pad(column.title + arrow, column.width, column.align)
        line.append((text + " ", "headline" if is_sorted else "label"))
    return line


def run_line(run: RunSummary, columns: Sequence[RunColumn], view: RunsView) -> Line:
    """One run as a row: its mark, then the cells."""
    line = [(" *" if run.key in view.marked else "  ", "bold accent")]
    for column in columns:
        cell = column.draw(run, view.now, view.outcomes.get(run.key))
        if column.title == "name":
            glyph, colour = status_mark(run.status)
            cell = [(f"{glyph} ", colour), *cell, (_place(run, view), "live")]
        elif column.title == "steps":
            share = run.step / run.total_steps if run.total_steps else 0
            cell += [(" ", "text"), *meter(share, 4)]
        line += [*aligned(cell, column.width, column.align), (" ", "")]
    return line


def _place(run: RunSummary, view: RunsView) -> str:
    """Whether this window trains the run, where another one trains as well."""
    if not run.active or not view.here or sum(run.active for run in view.runs) < 2:
        return ""
    return " here" if run.id == view.here else " elsewhere"


def _heading(row: TableRow, view: RunsView) -> Line:
    sign = "▸" if row.folded else "▾"
    by = column_label(view.group)
    name = f"no {by}" if row.group == "–" else f"{by} {row.group}"
    return [(f"{sign} {safe(name)}  ({row.count})", "headline")]


def card_lines(view: RunsView, width: int, height: int) -> list[Line]:
    """What to do where no run is listed."""
    head = "No runs left; u brings back what was deleted." if view.deleted else "No runs yet."
    return card(head, CARD, width, height)


# -- the preview --------------------------------------------------------------------------------


def group_preview(
    view: RunsView, members: Sequence[RunSummary], width: int, height: int
) -> list[Line]:
    """How many runs of a group have which health, and their results, the best first."""
    hints = paragraph(
        "⏎ folds the group, space marks its runs, d compares them.", width, 3, "label"
    )
    outcomes = [view.outcomes[run.key] for run in members if run.key in view.outcomes]
    counts = Counter(outcome.health.label for outcome in outcomes)
    lines: list[Line] = [
        [(f"{count:>3} ", "text"), (word, HEALTH_COLOURS.get(word, "label"))]
        for word, count in counts.most_common()
    ]
    lines += [[], justified([("highest first", "label")], [("held-out", "label")], width)]
    for run in sorted(members, key=held_out_of, reverse=True):
        cell = run_columns.HELD_OUT.draw(run, view.now, view.outcomes.get(run.key))
        name = (clip(safe(run.title), width - cells(cell) - 1), "text")
        lines.append(justified([name], cell, width))
    space = height - len(hints) - 1
    if len(lines) > space:
        lines = [*lines[: space - 1], [(f"… {len(lines) - space + 1} more", "label")]]
    return [*lines, [], *hints]


def held_out_of(run: RunSummary) -> float:
    """The last held-out accuracy; -1 where none was measured."""
    metric = run_columns.metric_of(run, "eval/accuracy")
    return -1.0 if metric is None or metric.last is None else metric.last


def preview_lines(
    preview: Preview, run: RunSummary, width: int, height: int, here: bool = False
) -> list[Line]:
    """Everything that fits, the most important first; in full where there is room."""
    lines = _preview_lines(preview, run, width, height, here, rows=20)
    if len(lines) > height:
        lines = _preview_lines(preview, run, width, height, here, rows=0)
    return lines[:height]


def _preview_lines(
    preview: Preview, run: RunSummary, width: int, height: int, here: bool, rows: int
) -> list[Line]:
    """Of long texts at least so many rows; the steps are those of the row in the table."""
    word, reason = preview.health.label, preview.health.reason
    lines = _head(preview, run, width, here)
    head = (f"{word}  ", HEALTH_COLOURS.get(word, "label"))
    lines += paragraph(reason, width, max(5, rows), "text", head)
    lines += _post_mortem(preview, width)
    lines += _charts(preview, width, height - len(lines))
    for label, text in files_text(preview.detail.files):
        lines += paragraph(f"{label}: {text}", width, max(6, rows), "label")
    if preview.alert is not None and preview.alert.explanation not in reason:
        sign, colour = severity_mark(preview.alert.severity)
        if not preview.alert.is_recent(preview.detail.summary.step):
            colour = "label"
        text = f"{sign} step {preview.alert.last_step}: {preview.alert.explanation}"
        lines += paragraph(text, width, max(6, rows), colour)
    if preview.changed and (rows or len(lines) + 3 < height):
        lines += [[], [("changed settings", "label")]]
        lines += labelled(preview.changed, min(27, width * 3 // 5), width, max(2, rows))
    return lines


def settings_line(run: RunSummary) -> str:
    """Model, task, recipe and seed, as far as they are known."""
    seed = "" if run.seed is None else f"seed {run.seed}"
    return " · ".join(filter(None, (run.model, run.task, run.recipe, seed)))


def _head(preview: Preview, run: RunSummary, width: int, here: bool) -> list[Line]:
    place = (" in this window" if here else " in another process") if run.active else ""
    waiting = f"{run.waiting} and are imported when the store can be written" if run.waiting else ""
    descent, origin = preview.detail.descent, preview.detail.origin
    texts = (
        (f"{run.id} · {run.status}{place}", 2, "text"),
        (
            step_of(run.step, run.total_steps)
            + f" · {seconds(run.elapsed)} in steps" * bool(run.elapsed),
            2,
            "text",
        ),
        ("" if run.tokens is None else f"{tokens(run.tokens)} tokens", 2, "text"),
        (settings_line(run), 2, "text"),
        (run.note, 3, "text"),
        (run.error, 4, "bad"),
        (waiting, 4, "warn"),
        (f"from {descent}" if descent else "", 3, "label"),
        ("" if origin == "here" else origin, 3, "label"),
    )
    return [
        line
        for text, limit, colour in texts
        if text
        for line in paragraph(text, width, limit, colour)
    ]


def _post_mortem(preview: Preview, width: int) -> list[Line]:
    end = preview.post_mortem
    if end is None:
        return []
    step = end.checkpoint_step
    saved = "no checkpoint: it would start over"
    if step is not None:
        saved = f"checkpoint at step {step}, {count_of(end.steps_to_redo, 'step')} to redo"
    seen = f"last seen {moment(end.last_seen)}" if end.last_seen else ""
    is_new = end.cause != preview.detail.summary.error  # The summary stands above.
    texts = (f"ended: {end.cause}" if is_new else "", f"last step {end.last_step}", seen, saved)
    lines: list[Line] = [[]]
    lines += [line for text in texts if text for line in paragraph(text, width, 3, "text")]
    lines.append([("r resume", "accent"), ("" if step is None else " from there", "label")])
    for log_line in end.log_lines[-3:]:
        lines += paragraph(DATE.sub(r"\1", log_line), width, 2, "label")
    return lines


def _charts(preview: Preview, width: int, height: int) -> list[Line]:
    count = max(0, height - 2) // (CHART_HEIGHT + 1)
    charted = [series for series in preview.series[:3] if len(series.values) > 1][:count]
    last = max((series.steps[-1] for series in charted), default=0) or 1
    lines = [line for series in charted for line in _chart(series, last, width)]
    return [*lines, axis_line(f"step {last}", width)] if lines else []


def _chart(series: MetricSeries, last: float, width: int) -> list[Line]:
    metric, curve = spec(series.key), Series.of(series.key, series.steps, series.values)
    columns = max(4, width - LABELS)
    trace = Curve.of(curve, last, columns, f"series.{series.key}")
    title = [
        (f"{metric.label} ", "label"),
        (with_unit(curve.value, metric.unit), "headline"),
        (" smoothed" * (not curve.sparse), "label"),
    ]
    return [title, *plot_lines(*chart_cells(series.key, [trace], columns, CHART_HEIGHT))]
