"""The panels of Watch; each draws a snapshot and posts messages for what a key asks."""

from typing import Any, ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.reactive import reactive

from grpo_tui.app.feed.snapshot import Snapshot
from grpo_tui.app.tui.looks.colours import Palette, style
from grpo_tui.app.tui.messages import ExplainRequested, MetricRequested
from grpo_tui.app.tui.screens.watch.charts import (
    ROOMY,
    TIGHT,
    Chart,
    chart_lines,
    charts_of,
    guides_of,
    last_step,
    rows_of,
)
from grpo_tui.app.tui.widgets.charts.plot import step_axis
from grpo_tui.app.tui.widgets.charts.stack import ChartStack, side_by_side
from grpo_tui.app.tui.widgets.panel import Line

AXIS_FROM = 16  # lines with which there is an axis of steps
TELLING = 4  # charts at the start of the list that get most of the spare lines


class Curves(ChartStack):
    """The charts of a run, with a cursor for `?`; scrolls with the cursor."""

    two_columns = 76
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "explain_chart", "explain metric", id="curves.explain",
                tooltip="Explain the chosen metric"),
        Binding("m", "metrics", "metrics", id="curves.metrics",
                tooltip="Choose any metrics to draw"),
    ]  # fmt: skip

    snapshot: reactive[Snapshot] = reactive(Snapshot, always_update=True)
    cursor: reactive[int] = reactive(0)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("curves", **kwargs)

    @property
    def chosen(self) -> Chart | None:
        """The chart under the cursor."""
        charts = charts_of(self.snapshot)
        return charts[min(self.cursor, len(charts) - 1)] if charts else None

    def topic(self) -> str:
        """Return the topic of the selected chart's first metric."""
        return f"metric:{self.chosen.keys[0]}" if self.chosen else "screen:watch"

    def paint(self, width: int, height: int) -> list[Line]:  # noqa: ARG002 - the charts' width is in the base class
        """The charts that fit, row by row, in one column or two."""
        snapshot, charts = self.snapshot, charts_of(self.snapshot)
        if not charts:
            return _empty(snapshot, self.palette)
        axis = 1 if height >= AXIS_FROM else 0
        cursor = min(self.cursor, len(charts) - 1)
        columns, each = self.columns(len(charts)), self.chart_width(len(charts))
        rows = self.fitting(
            rows_of(charts, snapshot, columns, TIGHT if height < 6 * ROOMY else ROOMY),
            height - axis, cursor, -(-TELLING // columns),
        )  # fmt: skip

        def draw(index: int, width: int, height: int) -> list[Line]:
            return self._chart(charts[index], width, height, index == cursor and self.has_focus)

        lines = self.stacked(rows, each, draw)
        hidden = len(charts) - sum(len(members) for members, _ in rows)
        more = f" · {hidden} more ↓" if hidden > 0 else ""
        self.note_first(f"values and lines smoothed, dots as recorded{more}", f"smoothed{more}")
        if not axis:
            return lines
        below = [[step_axis(last_step(snapshot), each, self.palette)]] * columns
        gap: list[Line] = [[] for _ in range(height - 1 - len(lines))]
        return [*lines, *gap, *side_by_side(below, each)]

    def _chart(self, chart: Chart, width: int, height: int, chosen: bool) -> list[Line]:
        """The lines of a chart, drawn again only where their content changes."""
        snapshot, palette = self.snapshot, self.palette
        series = tuple(snapshot.series.get(key) for key in chart.keys)
        key = (chart, series, width, height, chosen, palette, snapshot.step,
               snapshot.head.total_steps, guides_of(chart, snapshot), snapshot.weights)  # fmt: skip
        return self.unchanged(
            chart.title, key,
            lambda: chart_lines(chart, snapshot, width, height, palette, chosen),
        )  # fmt: skip

    def action_move(self, rows: int, columns: int) -> None:
        """Move the cursor by rows of charts, or by charts."""
        charts = charts_of(self.snapshot)
        by = rows * self.columns(len(charts)) + columns
        self.cursor = max(0, min(len(charts) - 1, self.cursor + by))

    def action_metrics(self) -> None:
        """Ask for a choice among all metrics."""
        self.post_message(MetricRequested(""))

    def action_explain_chart(self) -> None:
        """Explain the selected metric."""
        self.post_message(ExplainRequested(self.topic()))

    def on_click(self, event: events.Click) -> None:
        """Choose the chart that was clicked."""
        if at := self.chart_at(event.offset):
            self.cursor = at[0]


def _empty(snapshot: Snapshot, palette: Palette) -> list[Line]:
    text = " Curves begin after step 1."
    if snapshot.status == "empty":
        text = " The curves of a run appear here."
    elif snapshot.reading:
        text = " The run is being read."
    return [[(text, style(palette.label))]]
