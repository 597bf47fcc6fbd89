"""The curves panel of Compare: charts of the chosen metrics with a shared crosshair.

Each run has a mark as well as a colour. Marks are staggered along the curves, so that they stay
visible where curves overlap, and appear at each curve's end.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from textual import events
from textual.message import Message

from grpo_engine.metrics import natural_range, spec
from grpo_tui.app.charts.series import Trace
from grpo_tui.app.charts.stored import ChartData
from grpo_tui.app.text.numbers import with_unit
from grpo_tui.app.text.safe_text import cell_len, clip
from grpo_tui.app.tui.screens.compare.panels import ViewPanel
from grpo_tui.app.tui.screens.compare.render import position_text
from grpo_tui.app.tui.screens.compare.state import View
from grpo_tui.app.tui.widgets.charts.plot import (
    LABELS,
    Curve,
    axis_of,
    cross_column,
    cross_position,
    plot,
    plot_lines,
)
from grpo_tui.app.tui.widgets.charts.stack import ChartStack, Row, side_by_side
from grpo_tui.app.tui.widgets.charts.title import Readout, title_line
from grpo_tui.app.tui.widgets.panel import Line

TALL = 8  # lines of a chart
NAME_CELLS = (24, 14, 7)  # of a run in a title, as there is room
ARROWS = {"up": " ↑", "down": " ↓", "none": ""}
AXIS_WORDS = {"step": "by step", "tokens": "at equal tokens", "wall": "at equal wall time"}


@dataclass
class CurvesResized(Message):
    """The width of the charts has changed."""


class CurvesPanel(ViewPanel, ChartStack):
    """Charts of the chosen metrics, stacked, with a shared crosshair."""

    navigable = True
    two_columns = 116
    wheel = 1

    @property
    def pixels(self) -> int:
        """The width of a chart in pixel columns."""
        return max(2, 2 * (self.chart_width(len(self._metrics)) - LABELS))

    @property
    def _data_width(self) -> int:
        """The cells of each chart: those for which the curves were read."""
        data = self.view.charts
        return data.request.wide // 2 + LABELS if data else self.chart_width(len(self._metrics))

    def on_resize(self) -> None:
        """Request curves for the new width."""
        self.post_message(CurvesResized())

    @property
    def alone(self) -> bool:
        """Whether only the chosen chart is drawn."""
        return self.screen.maximized is self

    @property
    def _metrics(self) -> tuple[str, ...]:
        view = self.view
        return view.metrics[view.chart : view.chart + 1] if self.alone else view.metrics

    def _rows(self) -> list[Row]:
        """The rows of charts that fit, including the chosen one."""
        keys, columns = self._metrics, self.columns(len(self._metrics))
        rows = [(range(i, min(i + columns, len(keys))), TALL)
                for i in range(0, len(keys), columns)]  # fmt: skip
        chosen = 0 if self.alone else self.view.chart
        return self.fitting(rows, self.inner.height - 1, chosen)

    def in_sight(self) -> tuple[str, ...]:
        """The metrics whose charts fit, including the chosen one."""
        return tuple(self._metrics[index] for charts, _ in self._rows() for index in charts)

    def _description(self) -> str:
        """How the curves are drawn, as a note in the frame."""
        view = self.view
        smooth = f"smooth {view.smoothing:g}, numbers raw".replace("0.", ".")
        parts = [AXIS_WORDS[view.axis]]
        parts += ["log scale"] if view.log else []
        parts += ["seeds as bands"] if view.bands else []
        parts += [smooth] if view.smoothing else []
        return " · ".join(parts)

    def topic(self) -> str:
        return f"metric:{self.view.metric}" if self.view.metric else "screen:compare"

    def copy_text(self) -> str:
        """Return the chosen metric of each run at the crosshair."""
        view = self.view
        rows = [f"{view.metric} at {view.axis} {view.x:g}"]
        for run in view.runs:
            value, step = view.value_at_x(view.metric, run.id)
            rows.append(f"{view.name(run)}\t{value}\t{'' if step is None else f'step {step}'}")
        return "\n".join(rows)

    def paint(self, width: int, height: int) -> list[Line]:  # noqa: ARG002 - the base class has both
        """The charts that fit, then the axis."""
        view = self.view
        self.note = self._description()
        if view.charts is None:
            return [[("reading", "label")]]
        keys, rows = self._metrics, self._rows()
        if not keys:
            return [[("No metrics are recorded yet.", "label")]]
        width = self._data_width
        lines = self.stacked(rows, width, self._chart)
        more = len(keys) - sum(len(charts) for charts, _ in rows)
        self.title = f"curves · {more} more ↕" if more > 0 else "curves"
        axis = [[axis_line(view, width)]] * self.columns(len(keys))
        return [*lines, *side_by_side(axis, width)]

    def _chart(self, index: int, width: int, height: int) -> list[Line]:
        view = self.view
        key = self._metrics[index]
        charts = view.charts.charts if view.charts else ()
        chart = next((chart for chart in charts if chart.key == key), None)
        if chart is None:
            return [[(f" {key}: reading", "label")], *([[]] * (height - 1))]
        size = (width - LABELS, max(1, height - 1))
        foreground = view.chosen.id if view.chosen else ""
        content = (chart, size, view.hidden, foreground, view.bands, view.log)
        cells, scale = self.unchanged(key, content, lambda: plot_of(chart, view, *size))
        title = chart_title(chart, view, width, chosen=key == view.metric)
        return [title, *plot_lines(cells, scale, cross_of(view, size[0]))]

    def _pick(self, event: events.MouseEvent) -> None:
        if (at := self.chart_at(event.offset)) and (data := self.view.charts) is not None:
            index, column = at[0], at[1] - LABELS
            width = self._data_width - LABELS
            if column < width:
                x = cross_position(column, data.span, width)
                chart = self.view.chart if self.alone else index
                at_x = x if column >= 0 else None
                self.call_later(self.run_action, f"screen.pick_chart({chart}, {at_x})")

    def on_click(self, event: events.Click) -> None:
        """Choose the clicked chart and move the crosshair there."""
        self._pick(event)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Drag the crosshair."""
        if event.button:
            self._pick(event)


def curves_of(chart: ChartData, view: View) -> list[Curve]:
    """The curves of a chart from back to front, with the chosen run in front.

    Only that one, and one that is alone, has the range of its values below it.
    """
    visible = {run.id for run in view.visible_runs}
    chosen = view.chosen.id if view.chosen else ""
    background: list[Curve] = []
    foreground: list[Curve] = []
    grouped: set[str] = set()
    for runs, trace in chart.bands if view.bands else ():
        if visible & set(runs):
            grouped |= set(runs)
            marker = view.marker(runs[0])
            trace = _within(trace, chart.key, view.log)
            curve = Curve(trace, marker.colour, marker.mark, "raw")
            (foreground if chosen in runs else background).append(curve)
    alone = sum(curve.run in visible for curve in chart.curves) == 1
    for item in chart.curves:
        if item.run in visible - grouped:
            marker = view.marker(item.run)
            smooth = not item.series.sparse and view.smoothing
            ranged = "raw" if smooth and (alone or item.run == chosen) else ""
            curve = Curve(item.trace, marker.colour, marker.mark, ranged)
            (foreground if item.run == chosen else background).append(curve)
    return background + foreground


def _within(trace: Trace, key: str, log: bool) -> Trace:
    """An interval without what the metric cannot be, such as a share above 1."""
    low, high = natural_range(key)
    if log:
        low, high = -math.inf, math.log10(high)
    return replace(trace, columns=tuple(
        replace(item, low=min(max(item.low, low), high), high=min(max(item.high, low), high))
        for item in trace.columns
    ))  # fmt: skip


def plot_of(chart: ChartData, view: View, width: int, height: int) -> tuple[Any, Any]:
    """The cells of a chart without the crosshair, and its vertical axis."""
    guides, curves = spec(chart.key).guides, curves_of(chart, view)
    scale = axis_of(chart.key, curves, height, guides, log=view.log)
    lines = [] if view.log else [(value, ()) for value in guides]
    return plot(curves, scale, width, height, lines), scale


def cross_of(view: View, width: int) -> int:
    """The cell column of the crosshair; -1 if it is outside."""
    data = view.charts
    if data is None or not 0 <= view.x <= data.span:
        return -1
    return cross_column(view.x, data.span, width)


def chart_title(chart: ChartData, view: View, width: int, *, chosen: bool) -> Line:
    """A metric's name, its better direction, and every run's value at the crosshair."""
    metric = spec(chart.key)
    name = f"{metric.label}{ARROWS[metric.direction]}"
    return title_line(name, readouts(chart, view), width, chosen=chosen)


def readouts(chart: ChartData, view: View) -> list[Readout]:
    """Each curve's mark, name and recorded value at the crosshair.

    The value of a band is the mean of its seeds.
    """
    visible = {run.id for run in view.visible_runs}
    groups = [group for group, _ in chart.bands if visible & set(group)] if view.bands else []
    members = {run for group in groups for run in group}
    groups += [(run.id,) for run in view.visible_runs if run.id not in members]
    return [_readout(chart, view, group) for group in groups]


def _readout(chart: ChartData, view: View, group: Sequence[str]) -> Readout:
    marker, name = view.marker(group[0]), view.column_name(group)
    unit = spec(chart.key).unit
    names = (*dict.fromkeys(clip(name, limit) for limit in NAME_CELLS), "")
    recorded = [run for run in group if view.curve(chart.key, run) is not None]
    if not recorded:
        return Readout("none", "label", (f"{marker.mark} ", "label"), names)
    read = [view.value_at_x(chart.key, run) for run in recorded]
    values = [value for value, _ in read if value is not None]
    text = with_unit(math.fsum(values) / len(values) if values else None, unit)
    reaches = any(view.end(run) >= view.x for run in view.runs if run.id in group)
    steps = [step for _, step in read if step is not None]
    if reaches and view.axis == "step" and steps and min(steps) < int(view.x):
        text += f" @{min(steps)}"  # an evaluation of an earlier step, next to those of this one
    chosen = view.chosen is not None and view.chosen.id in group
    colour = "bold " * chosen + (marker.colour if reaches else "label")
    return Readout(text, colour, (f"{marker.mark} ", f"bold {marker.colour}"), names)


def axis_line(view: View, width: int) -> Line:
    """The horizontal axis below the charts, with both ends and the crosshair's position."""
    data = view.charts
    if data is None:
        return []
    cells = width - LABELS
    end = position_text(view.axis, data.span).removeprefix("step ")
    position = position_text(view.axis, view.x)
    start, text = cross_column(view.x, data.span, cells), f"▴ {position}"
    if start + cell_len(text) > cells:
        start, text = max(0, start - cell_len(position) - 1), f"{position} ▴"
    before = "0" if start > 2 else ""
    left = cells - start - cell_len(text)
    after = end.rjust(left) if left >= cell_len(end) + 2 else ""
    return [(" " * LABELS + before.ljust(start), "label"), (text, "text"), (after, "label")]
