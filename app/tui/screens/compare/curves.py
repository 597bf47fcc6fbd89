"""The curves panel of Compare: charts of the chosen metrics with a shared crosshair.

Each run has a mark as well as a colour. Marks are staggered along the curves, so that they stay
visible where curves overlap, and appear at each curve's end.
"""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from textual import events

from grpo_engine.metrics import spec
from grpo_tui.app.charts.stored import ChartData
from grpo_tui.app.text.safe_text import clip
from grpo_tui.app.tui.screens.compare.panels import ViewPanel
from grpo_tui.app.tui.screens.compare.render import crosshair_cell, position_text
from grpo_tui.app.tui.screens.compare.state import View
from grpo_tui.app.tui.widgets.charts.plot import (
    LABELS,
    Curve,
    axis_line,
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
NAME_CELLS = 24  # of a run in a title, if there is room for all names
ARROWS = {"up": " ↑", "down": " ↓", "none": ""}


class CurvesPanel(ViewPanel, ChartStack):
    """Charts of the chosen metrics, stacked, with a shared crosshair."""

    two_columns = 116
    wheel = 1

    @property
    def pixels(self) -> int:
        """The width of a chart in pixel columns."""
        return max(2, 2 * (self.chart_width(len(self.view.metrics)) - LABELS))

    @property
    def _data_width(self) -> int:
        """The cells of each chart: those for which the curves were read."""
        data = self.view.charts
        return (data.request.wide if data else self.pixels) // 2 + LABELS

    async def on_resize(self) -> None:
        """Request curves for the new width."""
        await self.run_action("screen.draw")

    def _rows(self) -> list[Row]:
        """The rows of charts that fit, including the chosen one."""
        chosen, height = self.view.chart, self.inner.height - 1
        if self.alone:
            return [(range(chosen, chosen + 1), height)]
        count = len(self.view.metrics)
        columns = self.columns(count)
        rows = [(range(i, min(i + columns, count)), TALL) for i in range(0, count, columns)]
        return self.fitting(rows, height, chosen)

    def in_sight(self) -> tuple[str, ...]:
        """The metrics whose charts fit, including the chosen one."""
        metrics = self.view.metrics
        return (
            tuple(metrics[index] for charts, _ in self._rows() for index in charts)
            if metrics
            else ()
        )

    def _description(self) -> str:
        """Where the crosshair is and how the curves are drawn, as a note in the frame."""
        view = self.view
        smooth = f"smooth {view.smoothing:g}, numbers raw".replace("0.", ".")
        parts = [f"at {position_text(view.axis, view.x)}"]
        parts += ["seeds as bands"] if view.bands else []
        parts += [smooth] if view.smoothing else []
        return " · ".join(parts)

    def copy_text(self) -> str:
        """Return the chosen metric of each run at the crosshair."""
        view = self.view
        rows = [f"{view.metric} at {view.axis} {view.x:g}"]
        for run in view.runs:
            value, step = view.value_at_x(view.metric, (run.id,))
            rows.append(f"{view.name(run)}\t{value}\tstep {step}")
        return "\n".join(rows)

    def paint(self, width: int, height: int) -> list[Line]:  # noqa: ARG002 - the base class has both
        """The charts that fit, then the axis."""
        view = self.view
        self.note = self._description()
        if view.charts is None:
            return [[("reading", "label")]]
        count = len(view.metrics)
        if not count:
            return [[("No metrics are recorded yet.", "label")]]
        rows, width = self._rows(), self._data_width
        lines = self.stacked(rows, width, self._chart)
        more = count - sum(len(charts) for charts, _ in rows)
        self.title = f"curves · {more} more ↕" if more > 0 else "curves"
        axis = axis_line(position_text(view.axis, view.charts.span), width)
        return [*lines, *side_by_side([[axis]] * self.columns(count), width)]

    def _chart(self, index: int, width: int, height: int) -> list[Line]:
        view = self.view
        key = view.metrics[index]
        charts = view.charts.charts if view.charts else ()
        chart = next((chart for chart in charts if chart.key == key), None)
        if chart is None:
            return [[(f" {key}: reading", "label")], *([[]] * (height - 1))]
        size = (width - LABELS, max(1, height - 1))
        content = (chart, size, view.columns, view.column)
        cells, scale = self.unchanged(key, content, lambda: plot_of(chart, view, *size))
        title = chart_title(key, view, width)
        return [title, *plot_lines(cells, scale, cross_of(view, size[0]))]

    def _pick(self, event: events.MouseEvent) -> None:
        if (at := self.chart_at(event.offset)) and (data := self.view.charts) is not None:
            chart, column, width = at[0], at[1] - LABELS, self._data_width - LABELS
            if column < width:
                x = cross_position(column, data.span, width) if column >= 0 else None
                self.call_later(self.run_action, f"screen.pick_chart({chart}, {x})")

    def on_click(self, event: events.Click) -> None:
        """Choose the clicked chart and move the crosshair there."""
        self._pick(event)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Drag the crosshair."""
        if event.button:
            self._pick(event)


def curves_of(chart: ChartData, view: View) -> list[Curve]:
    """The curves of a chart from back to front, with that of the chosen run in front.

    Of single runs only that one, and one that is alone, has the range of its values below it.
    """
    traces = {(curve.run,): curve.trace for curve in chart.curves} | dict(chart.bands)
    columns, chosen = [runs for runs in view.columns if runs in traces], view.chosen
    curves = []
    for runs in columns:
        marker, trace = view.marker(runs[0]), traces[runs]
        front = chosen is not None and chosen.id in runs
        alone = front or len(columns) == 1
        ranged = len(runs) > 1 or (alone and view.smoothing and not trace.sparse)
        curve = Curve(trace, marker.colour, marker.mark, "raw" if ranged else "")
        curves.append((front, curve))
    return [curve for _, curve in sorted(curves, key=itemgetter(0))]


def plot_of(chart: ChartData, view: View, width: int, height: int) -> tuple[Any, Any]:
    """The cells of a chart without the crosshair, and its vertical axis."""
    guides, curves = spec(chart.key).guides, curves_of(chart, view)
    scale = axis_of(chart.key, curves, height, guides)
    return plot(curves, scale, width, height, [(value, ()) for value in guides]), scale


def cross_of(view: View, width: int) -> int:
    """The cell column of the crosshair; -1 if it is outside."""
    data = view.charts
    if data is None or not 0 <= view.x <= data.span:
        return -1
    return cross_column(view.x, data.span, width)


def chart_title(key: str, view: View, width: int) -> Line:
    """A metric's name, its better direction, and every run's value at the crosshair."""
    name = f"{spec(key).label}{ARROWS[spec(key).direction]}"
    values = [readout(key, view, runs) for runs in view.columns]
    return title_line(name, values, width, chosen=key == view.metric)


def readout(key: str, view: View, runs: Sequence[str]) -> Readout:
    """The mark, name and value at the crosshair of a run, or of several seeds."""
    marker, (text, colour) = view.marker(runs[0]), crosshair_cell(view, key, runs)
    bold = "bold " * (view.chosen is not None and view.chosen.id in runs)
    colour = bold + (marker.colour if colour == "text" else colour)
    names = (clip(view.column_name(runs), NAME_CELLS), "")
    return Readout(text, colour, (f"{marker.mark} ", f"bold {marker.colour}"), names)
