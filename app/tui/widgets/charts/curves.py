"""The curves panel: small stacked charts, each with value, change and guide lines."""

from typing import Any, ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.reactive import reactive

from app.feed.snapshot import Snapshot
from app.text.safe_text import cell_len
from app.tui.looks.colours import Palette, style
from app.tui.messages import ExplainRequested, MetricRequested
from app.tui.widgets.charts.chart import (
    Chart,
    chart_lines,
    charts_of,
    guides_of,
    heights,
    last_step,
    step_axis,
)
from app.tui.widgets.panel import Line, Panel

TWO_COLUMNS = 76
AXIS_FROM = 16


class Curves(Panel):
    """The charts of a run, with a cursor for `?`; scrolls with the cursor."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "step(-1)", "chart", id="curves.up", key_display="↑↓",
                tooltip="Choose the chart above"),
        Binding("down,j", "step(1)", "chart below", id="curves.down", show=False,
                tooltip="Choose the chart below"),
        Binding("enter", "explain_chart", "what is this", id="curves.explain",
                tooltip="Explain the chosen metric"),
        Binding("m", "metrics", "metrics", id="curves.metrics",
                tooltip="Choose any metrics to draw"),
    ]  # fmt: skip

    snapshot: reactive[Snapshot] = reactive(Snapshot, always_update=True)
    cursor: reactive[int] = reactive(0)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("curves", **kwargs)
        self._top = 0
        self._kept: dict[Chart, tuple[tuple[object, ...], list[Line]]] = {}
        self._starts: list[tuple[int, int, int, int]] = []

    @property
    def chosen(self) -> Chart | None:
        """The chart under the cursor."""
        charts = charts_of(self.snapshot)
        return charts[min(self.cursor, len(charts) - 1)] if charts else None

    def topic(self) -> str:
        """Return the topic of the selected chart's first metric."""
        return f"metric:{self.chosen.keys[0]}" if self.chosen else "screen:watch"

    def paint(self, width: int, height: int) -> list[Line]:
        """The charts that fit, in one column or two."""
        charts = charts_of(self.snapshot)
        self._starts = []
        if not charts:
            return _empty(self.snapshot, self.palette)
        columns = 2 if width >= TWO_COLUMNS and len(charts) > 1 else 1
        each = (width - (columns - 1) * 2) // columns
        axis = 1 if height >= AXIS_FROM else 0
        sizes = heights(height - axis, -(-len(charts) // columns))
        shown = len(sizes) * columns
        cursor = min(self.cursor, len(charts) - 1)
        self._top = max(0, min(self._top, cursor, len(charts) - shown))
        if cursor >= self._top + shown:
            self._top = cursor - shown + 1
        blocks: list[list[Line]] = []
        for place in range(columns):
            first = self._top + place * len(sizes)
            block: list[Line] = []
            for offset, size in enumerate(sizes):
                index = first + offset
                if index >= len(charts):
                    break
                self._starts.append((index, place * (each + 2), len(block), size))
                marked = index == cursor and self.has_focus
                block += self._chart(charts[index], each, size, marked)
            blocks.append(block)
        hidden = len(charts) - shown
        self.note = f"{hidden} more ↓" if hidden > 0 else "smooth .9"
        lines = _side_by_side(blocks, each)
        if not axis:
            return lines
        below = [step_axis(last_step(self.snapshot), each, self.palette)] * len(blocks)
        gap: list[Line] = [[] for _ in range(height - 1 - len(lines))]
        return [*lines, *gap, *_side_by_side([[line] for line in below], each)]

    def _chart(self, chart: Chart, width: int, height: int, marked: bool) -> list[Line]:
        """The lines of a chart, cached until their content changes."""
        snapshot = self.snapshot
        views = tuple(snapshot.series.get(key) for key in chart.keys)
        shown = (views, width, height, marked, self.palette, snapshot.step,
                 snapshot.head.total_steps, guides_of(chart, snapshot))  # fmt: skip
        kept = self._kept.get(chart)
        if kept is None or kept[0] != shown:
            lines = chart_lines(chart, snapshot, width, height, self.palette, marked)
            kept = self._kept[chart] = (shown, lines)
        return kept[1]

    def action_step(self, by: int) -> None:
        """Move the cursor by some charts."""
        self.cursor = max(0, min(len(charts_of(self.snapshot)) - 1, self.cursor + by))

    def action_metrics(self) -> None:
        """Ask for a choice among all metrics."""
        self.post_message(MetricRequested(""))

    def action_explain_chart(self) -> None:
        """Explain the selected metric."""
        self.post_message(ExplainRequested(self.topic()))

    def on_click(self, event: events.Click) -> None:
        """Choose the chart that was clicked."""
        place = self.inside(event.offset)
        for index, left, top, size in self._starts:
            if top <= place.y < top + size and place.x >= left:
                self.cursor = index


def _side_by_side(blocks: list[list[Line]], width: int) -> list[Line]:
    if len(blocks) == 1:
        return blocks[0]
    lines: list[Line] = []
    for left, right in zip(blocks[0], blocks[1] + [[]] * len(blocks[0]), strict=False):
        used = sum(cell_len(text) for text, _ in left)
        lines.append([*left, (" " * (width - used + 2), None), *right])
    return lines


def _empty(snapshot: Snapshot, palette: Palette) -> list[Line]:
    dim = style(palette.label)
    if snapshot.status == "empty":
        return [[(" No run is open.", dim)], [(" 1 lists runs, 2 starts one.", dim)]]
    return [[(" Curves begin with the first finished step.", dim)]]
