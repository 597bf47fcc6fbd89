"""A small chart as lines: title with value and change, guide lines, axis labels, curves."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.feed.series import SeriesView
from app.feed.snapshot import Snapshot
from app.text.axes import ROOM, Axis, axis
from app.text.numbers import change, with_unit
from app.text.safe_text import cell_len, clip
from app.tui.looks.colours import Palette, style
from app.tui.widgets.charts.braille import (
    GUIDE,
    Canvas,
    Curve,
    Frame,
    draw,
    drawn_values,
    span_of,
)
from app.tui.widgets.panel import Line, Span
from grpo_engine.metrics import natural_range, spec

LABELS = ROOM + 1
MIDDLE_FROM = 6
ROOMY, TIGHT = 4, 3


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart: its metrics, colour family, and the label of its guide lines."""

    title: str
    keys: tuple[str, ...]
    names: tuple[str, ...] = ()
    family: tuple[str, ...] = ()
    guide_word: str = ""


FIXED = (
    Chart("KL to reference", ("kl",), family=("kl",), guide_word="limit"),
    Chart("clipped", ("clip_ratio/low_mean", "clip_ratio/high_mean"), ("low", "high"),
          ("entropy", "clip"), "too much"),
    Chart("entropy", ("entropy",), family=("entropy",)),
    Chart("answer length", ("completions/mean_length",), family=("length",)),
    Chart("held-out accuracy", ("eval/accuracy",), family=("reward",)),
    Chart("loss", ("loss",), family=("loss",)),
    Chart("gradient norm", ("grad_norm",), family=("gradient",)),
    Chart("learning rate", ("learning_rate",), family=("rate",)),
    Chart("answers cut", ("completions/clipped_ratio",), family=("clip",), guide_word="too many"),
    Chart("step time", ("step_time",), family=("time",)),
    Chart("tokens per second", ("tokens_per_second",), family=("time",)),
    Chart("peak memory", ("memory/peak_gb",), family=("memory",)),
)  # fmt: skip

# The settings behind the guide lines: the thresholds of alerts.
GUIDES = {"kl": "kl", "clip_ratio/low_mean": "clip", "completions/clipped_ratio": "cut"}


def charts_of(snapshot: Snapshot) -> tuple[Chart, ...]:
    """The charts that a run has data for: reward and its functions first."""
    functions = [
        key for key in snapshot.series if key.startswith("rewards/") and key.endswith("/mean")
    ]
    names = tuple(key.split("/")[1] for key in functions)
    reward = Chart("reward", ("reward", *functions), ("", *names), ("reward",))
    found = (reward, *FIXED)
    return tuple(chart for chart in found if any(key in snapshot.series for key in chart.keys))


def guides_of(chart: Chart, snapshot: Snapshot) -> tuple[float, ...]:
    """The guide lines of a chart, from the run's settings."""
    return (limit_of(chart.keys[0], snapshot),) if chart.keys[0] in GUIDES else ()


def limit_of(key: str, snapshot: Snapshot) -> float:
    """The run's limit of a metric, beyond which an alert is raised."""
    from grpo_engine.config.settings import AlertsConfig  # the first screen does without pydantic

    chosen = snapshot.head.config.get("alerts", {}).get(GUIDES[key])
    default: float = AlertsConfig.model_fields[GUIDES[key]].default
    return float(chosen) if chosen is not None else default


def heights(room: int, count: int) -> list[int]:
    """Heights of the charts that fit into `room`; the first gets the remaining lines."""
    if not count or room < 2:
        return []
    least = ROOMY if room >= 6 * ROOMY else TIGHT
    shown = min(count, max(1, room // least))
    each, rest = divmod(room, shown)
    return [each + (rest if i == 0 else 0) for i in range(shown)]


def chart_lines(
    chart: Chart, snapshot: Snapshot, width: int, height: int, palette: Palette, chosen: bool
) -> list[Line]:
    """A chart with its title line."""
    views = [(i, key, snapshot.series[key]) for i, key in enumerate(chart.keys)
             if key in snapshot.series]  # fmt: skip
    plot_width, plot_height = width - LABELS, height - 1
    guides = guides_of(chart, snapshot)
    lines = [_title(chart, views, width, palette, chosen, guides)]
    if plot_height <= 0 or plot_width <= 2:
        return lines
    curves = [
        Curve(view, _colour(chart, i, palette), palette.raw if i == 0 else None)
        for i, _, view in reversed(views)
    ]
    frame = Frame(_axis(chart, curves, guides, plot_height), 0, last_step(snapshot))
    canvas = Canvas(plot_width, plot_height)
    for curve in curves:
        draw(canvas, curve, frame)
    rows: list[Line] = [
        [(text, style(look) if look is not None else None) for text, look in row]
        for row in canvas.rows()
    ]
    for guide in guides:
        if frame.axis.low < guide <= frame.axis.high:
            _lay_guide(rows, guide, chart.guide_word, frame.axis, plot_width, palette)
    dim = style(palette.label)
    margin = frame.axis.margin(plot_height)
    return lines + [[(text, dim), *row] for text, row in zip(margin, rows, strict=True)]


def _axis(chart: Chart, curves: Sequence[Curve], guides: Sequence[float], height: int) -> Axis:
    key = chart.keys[0]
    values = [value for curve in curves for value in drawn_values(curve)]
    return axis(values, unit=spec(key).unit, natural=natural_range(key), guides=guides,
                labels=3 if height >= MIDDLE_FROM else 2)  # fmt: skip


def last_step(snapshot: Snapshot) -> int:
    """The step at the right end of the charts."""
    return span_of(snapshot.step + 1, snapshot.head.total_steps + 1) - 1


def step_axis(last: int, width: int, palette: Palette) -> Line:
    """The first and last step of the charts above."""
    end = f"{last}"
    start = " " * LABELS + "step 0"
    gap = " " * max(1, width - len(start) - len(end))
    return [(start + gap + end, style(palette.label))]


def _colour(chart: Chart, index: int, palette: Palette) -> int:
    if index < len(chart.family):
        return palette.of_series(chart.family[index])
    return palette.cycle[(index + 2) % len(palette.cycle)]


def _title(
    chart: Chart, views: list[tuple[int, str, SeriesView]], width: int, palette: Palette,
    chosen: bool, guides: Sequence[float],
) -> Line:  # fmt: skip
    label = style(palette.headline if chosen else palette.label, bold=chosen)
    left: Line = [("▸" if chosen else " ", style(palette.accent)), (chart.title, label)]
    right: Line = []
    for i, key, view in views:
        colour = style(_colour(chart, i, palette), bold=i == 0 and not chart.names)
        name = clip(chart.names[i], 12) if i < len(chart.names) else ""
        value = with_unit(view.value, spec(key).unit)
        piece: Line = [(f"{name} ", style(palette.label))] if name else []
        piece.append((value, colour))
        single = i == 0 and not (chart.names and chart.names[0])
        delta = change(view.value, view.delta, spec(key).unit) if single else ""
        if delta:
            piece.append((f" {delta}", style(palette.label)))
        room = width - sum(cell_len(t) for t, _ in left + right + piece) - 3
        if room < 0:
            continue
        right += ([("  ", None)] if right else []) + piece
    for guide in guides:
        hint = f"  {chart.guide_word} {with_unit(guide, spec(chart.keys[0]).unit)}"
        if sum(cell_len(t) for t, _ in left + right) + len(hint) + 2 <= width:
            left.append((hint, style(palette.label)))
    gap = width - sum(cell_len(t) for t, _ in left + right)
    return [*left, (" " * max(1, gap), None), *right]


def _lay_guide(
    rows: list[Line], guide: float, word: str, scale: Axis, width: int, palette: Palette
) -> None:
    y = scale.dot(guide, 4 * len(rows)) >> 2
    flat = "".join(text for text, _ in rows[y])
    label = f" {word} " if word and len(word) + 8 < width else ""
    start = (width - len(label)) // 2
    look, words = style(palette.guide), style(palette.label)
    line: Line = []
    position = 0
    for text, colour in rows[y]:
        for char in text:
            inside = start <= position < start + len(label)
            free = flat[start : start + len(label)].strip() == ""
            span: Span = (char, colour)
            if char == " ":
                span = (label[position - start], words) if inside and free else (GUIDE, look)
            line.append(span)
            position += 1
    rows[y] = line
