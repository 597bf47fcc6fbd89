"""The preview's lines: a run's state, curves, settings and last alert."""

from app.feed.series import Series
from app.text.numbers import seconds, short, tokens
from app.text.safe_text import pad, wrap
from app.tui.looks.colours import Palette, style
from app.tui.screens.runs.load import Preview
from app.tui.widgets.charts.braille import Canvas, Curve, Frame, draw, limits, span_of
from app.tui.widgets.panel import Line
from experiments.values import MetricSeries
from grpo_engine.metrics import spec

CHART_HEIGHT = 4


def preview_lines(preview: Preview, width: int, height: int, palette: Palette) -> list[Line]:
    """Everything that fits, the most important first."""
    lines = _head(preview, width, palette)
    if preview.post_mortem is not None:
        lines += _post_mortem(preview, width, palette)
    for series in preview.series[:3]:
        if len(lines) + CHART_HEIGHT + 1 < height and len(series.values) > 1:
            lines += _chart(series, preview.detail.summary.total_steps, width, palette)
    lines += _evaluations(preview, width, palette)
    if preview.alert is not None:
        text = f"▲ {preview.alert.explanation}"
        lines += [[(part, style(palette.warn))] for part in wrap(text, width, 3)]
    if preview.changed and len(lines) + 3 < height:
        lines += [[], [("not the default", style(palette.label))]]
        for path, value in preview.changed[: max(0, height - len(lines))]:
            left = pad(path, min(26, width * 3 // 5))
            right = pad(value, max(1, width - len(left) - 1))
            lines.append([(left + " ", style(palette.label)), (right, style(palette.text))])
    return lines[:height]


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
    if run.parent:
        lines.append([(f"cloned from {run.parent}", label)])
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
    words = [f"ended: {found.cause}", f"last step {found.last_step}, {found.last_seen}", saved]
    lines: list[Line] = [[]]
    lines += [[(part, text)] for word in words for part in wrap(word, width, 3)]
    lines.append([("r resume", style(palette.accent)), (" from there", label)])
    for line in found.log_lines[-3:]:
        lines += [[(part, label)] for part in wrap(line, width, 2)]
    return lines


def _chart(series: MetricSeries, total: int, width: int, palette: Palette) -> list[Line]:
    kept = Series()
    for step, value in zip(series.steps, series.values, strict=True):
        kept.push(step, value)
    view = kept.view()
    low, high = limits([view])
    first = series.steps[0]
    canvas = Canvas(max(4, width - 6), CHART_HEIGHT)
    frame = Frame(
        low=low, high=high, first=first, span=span_of(series.steps[-1] - first + 1, total)
    )
    draw(canvas, Curve(view, palette.of_series(series.key), palette.raw), frame)
    about = spec(series.key)
    title: Line = [(f"{about.label} ", style(palette.label)),
                   (short(series.values[-1]), style(palette.headline))]  # fmt: skip
    lines = [title]
    for number, row in enumerate(canvas.rows()):
        edge = high if number == 0 else low if number == CHART_HEIGHT - 1 else None
        tick = pad("" if edge is None else short(edge), 5, ">")
        marks: Line = [(tick + " ", style(palette.guide if edge is None else palette.label))]
        lines.append(marks + [(text, style(colour) if colour else None) for text, colour in row])
    return lines


def _evaluations(preview: Preview, width: int, palette: Palette) -> list[Line]:
    """Held-out accuracy before and after training, for each sampling method."""
    lines: list[Line] = []
    for mode in ("greedy", "sampled"):
        found = [e for e in preview.evaluations if e.mode == mode]
        values = [next((e.metrics[k] for k in e.metrics if k.endswith("accuracy")), None)
                  for e in found]  # fmt: skip
        if found and values[-1] is not None:
            span = (
                f"{short(values[0])} → {short(values[-1])}" if len(found) > 1 else short(values[0])
            )
            text = pad(f"held-out, {mode}", max(1, width - 14))
            lines.append([(text, style(palette.label)), (pad(span, 14, ">"), style(palette.text))])
    return lines
