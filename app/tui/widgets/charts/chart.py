"""A small chart as lines: title with value and change, guide lines, axis labels, curves."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from grpo_engine.metrics import natural_range, spec
from grpo_tui.app.feed.series import SeriesView
from grpo_tui.app.feed.snapshot import Snapshot
from grpo_tui.app.text.axes import ROOM, Axis, axis
from grpo_tui.app.text.numbers import change, short, sparkline, with_unit
from grpo_tui.app.text.safe_text import cell_len, clip_middle
from grpo_tui.app.tui.looks.colours import Palette, style
from grpo_tui.app.tui.widgets.charts.braille import (
    GUIDE,
    Canvas,
    Curve,
    Frame,
    draw,
    drawn_values,
    span_of,
)
from grpo_tui.app.tui.widgets.panel import Line, Span

LABELS = ROOM + 1
MIDDLE_FROM = 6
ROOMY, TIGHT = 4, 3
LEAST_PLOT = 3  # lines below the list of reward functions
NAME_CELLS = (99, 14, 9)  # of a curve's name in a title: whole, or with its middle left out
TELLING = 4  # charts at the start of the list that get most of the spare lines
CONSTANT_FROM = 10  # values; before that any metric may look constant


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart: its metrics, colour family, and the label of its guide lines."""

    title: str
    keys: tuple[str, ...]
    names: tuple[str, ...] = ()
    family: tuple[str, ...] = ()
    guide_word: str = ""
    short: str = ""  # the title where it leaves no room for the limit


FIXED = (
    Chart("KL to reference", ("kl",), family=("kl",), guide_word="limit", short="KL"),
    Chart("held-out accuracy", ("eval/accuracy",), family=("reward",)),
    Chart("clipped", ("clip_ratio/low_mean", "clip_ratio/high_mean"), ("low", "high"),
          ("entropy", "clip"), "alert at"),
    Chart("answers cut", ("completions/clipped_ratio",), family=("clip",), guide_word="alert at"),
    Chart("entropy", ("entropy",), family=("entropy",)),
    Chart("answer length", ("completions/mean_length",), family=("length",)),
    Chart("loss", ("loss",), family=("loss",)),
    Chart("gradient norm", ("grad_norm",), family=("gradient",)),
    Chart("learning rate", ("learning_rate",), family=("rate",)),
    Chart("step time", ("step_time",), family=("time",)),
    Chart("tokens per second", ("tokens_per_second",), family=("time",)),
    Chart("peak memory", ("memory/peak_gb",), family=("memory",)),
)  # fmt: skip

# The thresholds of alerts behind the guide lines.
GUIDES = {"kl": "kl", "clip_ratio/low_mean": "clip", "completions/clipped_ratio": "cut"}


def charts_of(snapshot: Snapshot) -> tuple[Chart, ...]:
    """The charts that a run has data for: the telling ones first, those that never change last."""
    charts = (reward_chart(snapshot), *FIXED)
    found = [chart for chart in charts if any(key in snapshot.series for key in chart.keys)]
    return tuple(sorted(found, key=lambda chart: is_constant(chart, snapshot)))


def reward_chart(snapshot: Snapshot) -> Chart:
    """The chart of the reward and of each of its functions."""
    functions = [
        key for key in snapshot.series if key.startswith("rewards/") and key.endswith("/mean")
    ]
    names = tuple(key.split("/")[1] for key in functions)
    return Chart("reward", ("reward", *functions), ("", *names), ("reward",))


def function_lines(
    snapshot: Snapshot, width: int, palette: Palette, *, curves: bool = False
) -> list[Line]:
    """Each reward function with its weight and its ends; the one that moved most is marked."""
    chart, weights = reward_chart(snapshot), snapshot.weights
    views = [snapshot.series[key] for key in chart.keys[1:]]
    mover, word = snapshot.mover, " ◂ moved the reward most" if curves else " ◂"
    times = [f" ×{short(weights[name])}" if name in weights else "" for name in chart.names[1:]]
    ends = [f"  {short(view.start)} → {short(view.value)}{' smoothed' if curves else ''}"
            for view in views]  # fmt: skip
    right = max(map(cell_len, ends), default=0)
    left = max(map(cell_len, map(str.__add__, chart.names[1:], times)), default=0)
    values = [value for view in views for value in view.smooth if math.isfinite(value)]
    low, high = min(values, default=None), max(values, default=None)  # one scale for all curves
    lines: list[Line] = []
    for i, (name, view) in enumerate(zip(chart.names[1:], views, strict=True)):
        most = name == mover
        colour = style(_colour(chart, i + 1, palette))
        mark = (word if most else " " * len(word)) if len(views) > 1 else ""
        room = width - 3 - right - cell_len(mark)
        # all curves begin below each other
        curve = sparkline(list(view.smooth), room - left - 2, low, high) if curves else ""
        room -= cell_len(times[i])
        name = clip_middle(name, room)
        room -= cell_len(name)
        lines.append([(" ━ ", colour), (name, style(palette.text)),
                      (times[i], style(palette.label)), (" " * (room - len(curve)), None),
                      (curve, colour),
                      (ends[i].rjust(right), style(palette.headline if most else palette.text)),
                      (mark, style(palette.accent))])  # fmt: skip
    return lines


def is_constant(chart: Chart, snapshot: Snapshot) -> bool:
    """Whether a chart would be flat lines only; the reward is always drawn."""
    views = [snapshot.series[key] for key in chart.keys if key in snapshot.series]
    return chart.keys[0] != "reward" and all(_never_changes(view) for view in views)


def _never_changes(view: SeriesView) -> bool:
    values = (value for pair in zip(view.low, view.high, strict=True) for value in pair)
    return view.count >= CONSTANT_FROM and all(
        value == view.last or math.isnan(value) for value in values
    )


def guides_of(chart: Chart, snapshot: Snapshot) -> tuple[float, ...]:
    """The guide lines of a chart, from the run's settings."""
    return (limit_of(chart.keys[0], snapshot),) if chart.keys[0] in GUIDES else ()


def limit_of(key: str, snapshot: Snapshot) -> float:
    """The run's limit of a metric; an alert compares several steps with it."""
    # the first screen does without pydantic
    from grpo_engine.alerts.rules import CLIP
    from grpo_engine.config.settings import AlertsConfig

    chosen = snapshot.head.config.get("alerts", {}).get(GUIDES[key])
    return float(chosen if chosen is not None else getattr(AlertsConfig(), GUIDES[key], CLIP))


def steps_of(key: str) -> int:
    """How many of the last steps an alert compares with a metric's limit."""
    from grpo_engine.alerts.rules import COMPARED  # the first screen does without pydantic

    return COMPARED[GUIDES[key]]


def heights(room: int, least: Sequence[int], telling: int) -> list[int]:
    """Heights of the rows of charts that fit into `room`, of which each needs its least.

    A row of one line is text and does not grow; a telling row takes three times the spare lines of
    another, and the first row what is left over.
    """
    shown: list[int] = []
    for lines in least:
        if sum(shown) + lines > room:
            break
        shown.append(lines)
    shares = [0 if lines == 1 else 3 if i < telling else 1 for i, lines in enumerate(shown)]
    spare = room - sum(shown)
    if not sum(shares):
        return shown
    grown = [
        lines + spare * share // sum(shares) for lines, share in zip(shown, shares, strict=True)
    ]
    return [grown[0] + room - sum(grown), *grown[1:]]


def chart_lines(
    chart: Chart, snapshot: Snapshot, width: int, height: int, palette: Palette, chosen: bool
) -> list[Line]:
    """A chart with its title line."""
    views = [(i, key, snapshot.series[key]) for i, key in enumerate(chart.keys)
             if key in snapshot.series]  # fmt: skip
    plot_width, plot_height = width - LABELS, height - 1
    guides = guides_of(chart, snapshot)
    listed = (
        chart.names[:1] == ("",) and len(views) > 1 and plot_height >= LEAST_PLOT + len(views) - 1
    )
    shown = views[:1] if listed else _mover_first(chart, views, snapshot.mover)
    hints = [
        f"{chart.guide_word} {with_unit(guide, spec(chart.keys[0]).unit)} " for guide in guides
    ]
    hints += ["◂ moved it most"] if listed and snapshot.mover else []
    lines = [_title(chart, shown, width, palette, chosen, hints, snapshot.step)]
    if listed:
        lines += function_lines(snapshot, width, palette)
        plot_height -= len(views) - 1
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
            word = f"{chart.guide_word} {with_unit(guide, spec(chart.keys[0]).unit)}"
            words = (f"{word} over {steps_of(chart.keys[0])} steps", word)
            if _lay_guide(rows, guide, words, frame.axis, plot_width, palette):
                hints = hints[len(guides) :]  # its words are in the plot
                lines[0] = _title(chart, shown, width, palette, chosen, hints, snapshot.step)
    dim = style(palette.label)
    margin = frame.axis.margin(plot_height)
    return lines + [[(text, dim), *row] for text, row in zip(margin, rows, strict=True)]


def _mover_first(
    chart: Chart, views: list[tuple[int, str, SeriesView]], mover: str
) -> list[tuple[int, str, SeriesView]]:
    """The reward, then the function that moved it most: a narrow title may have no more."""
    named = [view for view in views if mover and chart.names[view[0] : view[0] + 1] == (mover,)]
    return views[:1] + named + [view for view in views[1:] if view not in named]


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
    chosen: bool, hints: Sequence[str], step: int,
) -> Line:  # fmt: skip
    label = style(palette.headline if chosen else palette.label, bold=chosen)
    left: Line = [("▸" if chosen else " ", style(palette.accent)), (chart.title, label)]
    room = width - cell_len(chart.title) - 1
    for cells in NAME_CELLS:
        right: Line = []
        whole = True
        for i, _, view in views:
            free = room - sum(cell_len(text) for text, _ in right)
            free -= 2 if right else 1
            piece = _readout(chart, i, view, palette, cells, free, step)
            if sum(cell_len(text) for text, _ in piece) > free:
                whole = False
                continue
            right += [("  " if right else " ", None), *piece]
        if whole:
            break
    missing = len(hints[0]) + 2 - width + sum(cell_len(t) for t, _ in left + right) if hints else 0
    if right and chart.short and 0 < missing <= len(chart.title) - len(chart.short):
        left[1] = (chart.short, label)
    for hint in hints:
        if sum(cell_len(t) for t, _ in left + right) + len(hint) + 2 <= width:
            left.append((f"  {hint}", style(palette.label)))
    gap = width - sum(cell_len(t) for t, _ in left + right)
    return [*left, (" " * max(0, gap), None), *right]


def _readout(
    chart: Chart, index: int, view: SeriesView, palette: Palette, cells: int, room: int, step: int
) -> Line:
    """A curve's name and value, and what else fits: its change, the step of an old value."""
    unit = spec(chart.keys[index]).unit
    dim = style(palette.label)
    name = clip_middle(chart.names[index], cells) if index < len(chart.names) else ""
    single = not name and index == 0
    piece: Line = [(f"{name} ", dim)] if name else []
    value = with_unit(view.value, unit)
    piece.append((value, style(_colour(chart, index, palette), bold=single and not chart.names)))
    delta = change(view.value, view.delta, unit) if single else ""
    delta = f" {delta}" if delta else ""
    old = view.last_step if single and view.sparse and view.last_step < step else None
    whole = f"{delta} points" if delta and view.sparse and unit == "share" else delta
    more = (
        (whole, delta)
        if old is None
        else (f"{whole} at step {old}", f"{delta} at step {old}", f" at step {old}", f" @{old}")
    )
    fitting = (text for text in more if cell_len(value + text) <= room)
    text = next(fitting, more[-1])
    return [*piece, (text, dim)] if text else piece


def _lay_guide(
    rows: list[Line], guide: float, words: Sequence[str], scale: Axis, width: int, palette: Palette
) -> bool:
    """Draw a guide line, with the first words that fit where there is no curve, if any do."""
    y = scale.dot(guide, 4 * len(rows)) >> 2
    flat = "".join(text for text, _ in rows[y])
    label, start = "", 0
    for word in words:
        at = (width - len(word) - 2) // 2
        if len(word) + 8 < width and not flat[at : at + len(word) + 2].strip():
            label, start = f" {word} ", at
            break
    look, written = style(palette.guide), style(palette.label)
    line: Line = []
    position = 0
    for text, colour in rows[y]:
        for char in text:
            inside = start <= position < start + len(label)
            span: Span = (char, colour)
            if char == " ":
                span = (label[position - start], written) if inside else (GUIDE, look)
            line.append(span)
            position += 1
    rows[y] = line
    return bool(label)
