"""The charts of a run on Watch: which there are, and their lines."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from grpo_engine.metrics import spec
from grpo_tui.app.charts.series import Series, axis_end, cut
from grpo_tui.app.feed.snapshot import Snapshot
from grpo_tui.app.text.numbers import change, short, sparkline, with_unit
from grpo_tui.app.text.safe_text import cell_len, clip_middle
from grpo_tui.app.tui.looks.colours import Palette, style
from grpo_tui.app.tui.widgets.charts.plot import LABELS, Curve, axis_of, plot, plot_lines
from grpo_tui.app.tui.widgets.charts.stack import Row
from grpo_tui.app.tui.widgets.charts.title import Readout, cells, title_line
from grpo_tui.app.tui.widgets.panel import Line

ROOMY, TIGHT = 4, 3  # lines of a chart
SHORTEST_PLOT = 3  # lines below the list of reward functions
NAME_CELLS = (99, 14, 9)  # of a curve's name in a title: all, or with its middle left out
CONSTANT_FROM = 10  # values; before that any metric may look constant


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart: its metrics, colour family, and the label of its guide lines."""

    title: str
    keys: tuple[str, ...]
    names: tuple[str, ...] = ()
    family: tuple[str, ...] = ()
    guide: str = ""
    short: str = ""  # the title where it leaves no room for the limit

    def colour(self, index: int, palette: Palette) -> int:
        """The colour of one of its curves."""
        if index < len(self.family):
            return palette.of_series(self.family[index])
        return palette.cycle[(index + 2) % len(palette.cycle)]


FIXED = (
    Chart("KL to reference", ("kl",), family=("kl",), guide="limit", short="KL"),
    Chart("held-out accuracy", ("eval/accuracy",), family=("reward",)),
    Chart("clipped", ("clip_ratio/low_mean", "clip_ratio/high_mean"), ("low", "high"),
          ("entropy", "clip"), "alert at"),
    Chart("answers cut", ("completions/clipped_ratio",), family=("clip",), guide="alert at"),
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
    """The charts that a run has data for; those that never change come last."""
    charts = (reward_chart(snapshot), *FIXED)
    recorded = [chart for chart in charts if any(key in snapshot.series for key in chart.keys)]
    return tuple(sorted(recorded, key=lambda chart: is_constant(chart, snapshot)))


def reward_chart(snapshot: Snapshot) -> Chart:
    """The chart of the reward and of each of its functions."""
    names = tuple(snapshot.reward_curves)
    keys = ("reward", *(f"rewards/{name}/mean" for name in names))
    return Chart("reward", keys, ("", *names), ("reward",))


def is_constant(chart: Chart, snapshot: Snapshot) -> bool:
    """Whether a chart would be flat lines only; the reward is always drawn."""
    curves = [snapshot.series[key] for key in chart.keys if key in snapshot.series]
    return chart.keys[0] != "reward" and all(_never_changes(series) for series in curves)


def _never_changes(series: Series) -> bool:
    return series.count >= CONSTANT_FROM and all(value == series.last for value in series.values)


def limit_of(key: str, snapshot: Snapshot) -> float:
    """The run's limit of a metric; an alert compares several steps with it."""
    # the first screen does without pydantic
    from grpo_engine.alerts.rules import CLIP
    from grpo_engine.config.settings import AlertsConfig

    limit = snapshot.head.config.get("alerts", {}).get(GUIDES[key])
    return float(limit if limit is not None else getattr(AlertsConfig(), GUIDES[key], CLIP))


def guides_of(chart: Chart, snapshot: Snapshot) -> tuple[tuple[float, tuple[str, str]], ...]:
    """The guide lines of a chart with their words, from the run's settings."""
    from grpo_engine.alerts.rules import COMPARED  # the first screen does without pydantic

    key = chart.keys[0]
    if key not in GUIDES:
        return ()
    limit = limit_of(key, snapshot)
    words = f"{chart.guide} {with_unit(limit, spec(key).unit)}"
    return ((limit, (f"{words} over {COMPARED[GUIDES[key]]} steps", words)),)


def rows_of(charts: Sequence[Chart], snapshot: Snapshot, columns: int, least: int) -> list[Row]:
    """The charts of each row with the lines that it needs; constant ones are one line of text."""
    live = sum(not is_constant(chart, snapshot) for chart in charts)
    parts = ((range(live), least), (range(live, len(charts)), 1))
    rows = [(part[i : i + columns], lines) for part, lines in parts
            for i in range(0, len(part), columns)]  # fmt: skip
    if least == ROOMY and charts[0].keys[0] == "reward":  # with the list of its functions
        rows[0] = (rows[0][0], least + len(charts[0].keys) - 1)
    return rows


def last_step(snapshot: Snapshot) -> int:
    """The step at the right end of the charts."""
    return int(axis_end(snapshot.step, snapshot.head.total_steps))


def chart_lines(
    chart: Chart, snapshot: Snapshot, width: int, height: int, palette: Palette, chosen: bool
) -> list[Line]:
    """A chart with its title line."""
    curves = {i: snapshot.series[key] for i, key in enumerate(chart.keys) if key in snapshot.series}
    wide, tall = width - LABELS, height - 1
    listed = chart.names[:1] == ("",) and 1 < len(curves) <= tall - SHORTEST_PLOT + 1
    tall -= len(curves) - 1 if listed else 0
    below = function_lines(snapshot, width, palette) if listed else []
    guides = guides_of(chart, snapshot)
    drawn: list[Line] = []
    hints = [f"{words[-1]} " for _, words in guides]
    if tall > 0 and wide > 2:
        end = last_step(snapshot)
        traced = [
            Curve(cut(series, series.steps, end, 2 * wide), chart.colour(i, palette),
                  range_colour=palette.raw if i == 0 and not series.sparse else None)
            for i, series in reversed(curves.items())
        ]  # fmt: skip
        scale = axis_of(chart.keys[0], traced, tall, [value for value, _ in guides])
        drawn = plot_lines(plot(traced, scale, wide, tall, palette, guides), scale, palette)
        if hints and any(f" {hints[0]}" in text for line in drawn for text, _ in line):
            hints = []  # it is in the plot
    hints += ["◂ moved it most"] if listed and snapshot.mover else []
    readouts = _readouts(chart, {0: curves[0]} if listed else curves, snapshot, palette)
    names = [name for name in (chart.title, chart.short) if name]
    title = title_line(names, readouts, width, palette, chosen=chosen, hints=hints)
    return [title, *below, *drawn]


def _readouts(
    chart: Chart, curves: dict[int, Series], snapshot: Snapshot, palette: Palette
) -> list[Readout]:
    """The value of each curve: the first, then that of the function that moved it most."""
    mover = chart.names.index(snapshot.mover) if snapshot.mover in chart.names[1:] else -1
    readouts = []
    for i in sorted(curves, key=lambda i: (i != 0, i != mover)):
        series, unit = curves[i], spec(chart.keys[i]).unit
        name = chart.names[i] if i < len(chart.names) else ""
        names = tuple(clip_middle(name, most) for most in NAME_CELLS)
        details = _details(series, unit, snapshot.step) if not (name or i) else ()
        look = style(chart.colour(i, palette), bold=not chart.names)
        readouts.append(Readout(with_unit(series.value, unit), look, names=names, details=details))
    return readouts


def _details(series: Series, unit: str, step: int) -> tuple[str, ...]:
    """A value's change, and the step of an old one, the longest first."""
    delta = change(series.value, series.delta, unit)
    delta = f" {delta}" if delta else ""
    points = f"{delta} points" if delta and series.sparse and unit == "share" else delta
    if not series.sparse or series.last_step >= step:
        return points, delta
    old = f" at step {series.last_step}"
    return points + old, delta + old, old, f" @{series.last_step}"


def function_lines(
    snapshot: Snapshot, width: int, palette: Palette, *, curves: bool = False
) -> list[Line]:
    """Each reward function with its weight and its ends; the one that moved most is marked."""
    chart, weights, functions = reward_chart(snapshot), snapshot.weights, snapshot.reward_curves
    mover, word = snapshot.mover, " ◂ moved the reward most" if curves else " ◂"
    times = [f" ×{short(weights[name])}" if name in weights else "" for name in functions]
    ends = [f"  {short(one.start)} → {short(one.value)}{' smoothed' if curves else ''}"
            for one in functions.values()]  # fmt: skip
    right = max(map(cell_len, ends), default=0)
    left = max(map(cell_len, map(str.__add__, functions, times)), default=0)
    scale = [*filter(math.isfinite, chain(*(one.average for one in functions.values())))]
    low, high = min(scale, default=None), max(scale, default=None)  # one scale for all curves
    lines: list[Line] = []
    for i, (name, series) in enumerate(functions.items()):
        colour = style(chart.colour(i + 1, palette))
        mark = (word if name == mover else " " * len(word)) if len(functions) > 1 else ""
        room = width - 3 - right - cell_len(mark)
        # all curves begin below each other
        curve = sparkline(list(series.average), room - left - 2, low, high) if curves else ""
        named: Line = [(clip_middle(name, room - cell_len(times[i])), style(palette.text)),
                       (times[i], style(palette.label))]  # fmt: skip
        gap = " " * (room - cells(named) - len(curve))
        look = style(palette.headline if name == mover else palette.text)
        lines.append([(" ━ ", colour), *named, (gap, None), (curve, colour),
                      (ends[i].rjust(right), look), (mark, style(palette.accent))])  # fmt: skip
    return lines
