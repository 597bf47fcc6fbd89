"""The preview's lines: a run's state, curves, settings and last alert."""

import re

from grpo_engine.metrics import spec
from grpo_tui.app.charts.series import Series, axis_end, cut
from grpo_tui.app.text.numbers import seconds, share, tokens, with_unit
from grpo_tui.app.text.safe_text import cell_len, clip, pad, wrap
from grpo_tui.app.tui.looks.colours import Palette, style
from grpo_tui.app.tui.screens.runs.load import Preview
from grpo_tui.app.tui.widgets.charts.plot import (
    LABELS,
    Curve,
    axis_of,
    plot,
    plot_lines,
    step_axis,
)
from grpo_tui.app.tui.widgets.panel import Line
from grpo_tui.experiments.values import MetricSeries

CHART_HEIGHT = 4
DATE = re.compile(r"^\d{4}-\d\d-\d\dT(\d\d:\d\d:\d\d)\S*")  # of a line of the log


def preview_lines(preview: Preview, width: int, height: int, palette: Palette) -> list[Line]:
    """Everything that fits, the most important first."""
    lines = _head(preview, width, palette)
    if preview.post_mortem is not None:
        lines += _post_mortem(preview, width, palette)
    room = max(0, height - len(lines) - 2) // (CHART_HEIGHT + 1)
    shown = [series for series in preview.series[:3] if len(series.values) > 1][:room]
    steps = max((series.steps[-1] for series in shown), default=0)
    last = axis_end(steps, preview.detail.summary.total_steps)
    for series in shown:
        lines += _chart(series, last, width, palette)
    if shown:
        lines.append(step_axis(last, width, palette))
    lines += _evaluations(preview, width, palette)
    if preview.alert is not None:
        text = f"▲ step {preview.alert.last_step}: {preview.alert.explanation}"
        lines += [[(part, style(palette.warn))] for part in wrap(text, width, 6)]
    if preview.changed and len(lines) + 3 < height:
        lines += [[], [("not the default", style(palette.label))]]
        names = _names(width)
        for path, value in preview.changed[: max(0, height - len(lines))]:
            for place, part in enumerate(wrap(value, max(1, width - names - 1), 2)):
                left = pad("" if place else path, names)
                lines.append([(left + " ", style(palette.label)), (part, style(palette.text))])
    return lines[:height]


def _names(width: int) -> int:
    """Cells of the names, before the values of settings and evaluations."""
    return min(26, width * 3 // 5)


def _head(preview: Preview, width: int, palette: Palette) -> list[Line]:
    run = preview.detail.summary
    label, text = style(palette.label), style(palette.text)
    facts = [
        f"{run.id} · {run.status}",
        f"step {run.step} of {run.total_steps} · {seconds(run.elapsed)}",
        f"{tokens(run.tokens)} tokens",
        f"{run.model} · {run.task} · {run.recipe} · seed {run.seed}",
    ]
    lines: list[Line] = [[(part, text)] for fact in facts for part in wrap(fact, width, 2)]
    if run.note:
        lines += [[(part, text)] for part in wrap(run.note, width, 3)]
    if run.error:
        lines += [[(part, style(palette.bad))] for part in wrap(run.error, width, 4)]
    if run.waiting:
        words = f"{run.waiting} and are imported when the store can be written"
        lines += [[(part, style(palette.warn))] for part in wrap(words, width, 4)]
    if descent := preview.detail.descent:
        lines += [[(part, label)] for part in wrap(f"from {descent}", width, 3)]
    return lines


def _post_mortem(preview: Preview, width: int, palette: Palette) -> list[Line]:
    found = preview.post_mortem
    if found is None:
        return []
    label, text = style(palette.label), style(palette.text)
    saved = (
        f"checkpoint at step {found.checkpoint_step}, {found.steps_to_redo} steps to redo"
        if found.checkpoint_step is not None
        else "no checkpoint: it would start over"
    )
    error = preview.detail.summary.error  # stands above
    words = [f"ended: {found.cause}"] if found.cause != error else []
    seen = f", {found.last_seen[:19].replace('T', ' ')} UTC" if found.last_seen else ""
    words += [f"last step {found.last_step}{seen}", saved]
    lines: list[Line] = [[]]
    lines += [[(part, text)] for word in words for part in wrap(word, width, 3)]
    lines.append(
        [
            ("r resume", style(palette.accent)),
            (" from there" if found.checkpoint_step is not None else "", label),
        ]
    )
    for line in found.log_lines[-3:]:
        lines += [[(part, label)] for part in wrap(DATE.sub(r"\1", line), width, 2)]
    return lines


def _chart(series: MetricSeries, last: float, width: int, palette: Palette) -> list[Line]:
    about, curve = spec(series.key), Series.of(series.key, series.steps, series.values)
    wide = max(4, width - LABELS)
    ranged = None if curve.sparse else palette.raw
    trace = Curve(cut(curve, curve.steps, last, 2 * wide), palette.of_series(series.key),
                  range_colour=ranged)  # fmt: skip
    scale = axis_of(series.key, [trace], CHART_HEIGHT)
    last_value = with_unit(curve.value, about.unit)  # where the line ends
    title: Line = [(f"{about.label} ", style(palette.label)),
                   (last_value, style(palette.headline))]  # fmt: skip
    if not curve.sparse:  # the table has the last step's value
        room = width - cell_len(about.label + last_value) - 1
        title.append((clip(" smoothed", room), style(palette.label)))
    cells = plot([trace], scale, wide, CHART_HEIGHT, palette)
    return [title, *plot_lines(cells, scale, palette)]


def _evaluations(preview: Preview, width: int, palette: Palette) -> list[Line]:
    """Held-out accuracy before and after training, for each sampling method."""
    lines: list[Line] = []
    for mode in ("greedy", "sampled"):
        found = [e for e in preview.evaluations if e.mode == mode]
        values = [e.metrics.get("eval/accuracy") for e in found]
        known = [share(value) for value in values if value is not None]
        if found:
            shown = [known[0], known[-1]][: len(known)] if known else ["not measured"]
            name = pad(f"held-out, {mode}", _names(width))
            lines.append([(f"{name} ", style(palette.label)),
                          (" → ".join(shown), style(palette.text))])  # fmt: skip
    return lines
