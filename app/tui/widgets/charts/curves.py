"""The curves panel: small stacked charts, each with value, change and guide lines."""

from collections.abc import Sequence
from typing import Any, ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.reactive import reactive

from grpo_tui.app.feed.snapshot import Snapshot
from grpo_tui.app.text.safe_text import cell_len
from grpo_tui.app.tui.looks.colours import Palette, style
from grpo_tui.app.tui.messages import ExplainRequested, MetricRequested
from grpo_tui.app.tui.widgets.charts.chart import (
    ROOMY,
    TELLING,
    TIGHT,
    Chart,
    chart_lines,
    charts_of,
    guides_of,
    heights,
    is_constant,
    last_step,
    step_axis,
)
from grpo_tui.app.tui.widgets.panel import Line, Panel

TWO_COLUMNS = 76
GAP = 2
AXIS_FROM = 16
Row = tuple[range, int]


class Curves(Panel):
    """The charts of a run, with a cursor for `?`; scrolls with the cursor."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "step(-1)", "chart", id="curves.up", key_display="↑↓",
                tooltip="Choose the chart above"),
        Binding("down,j", "step(1)", "chart below", id="curves.down", show=False,
                tooltip="Choose the chart below"),
        Binding("left,h", "aside(-1)", "chart to the left", id="curves.left", show=False,
                tooltip="Choose the chart to the left"),
        Binding("right,l", "aside(1)", "chart to the right", id="curves.right", show=False,
                tooltip="Choose the chart to the right"),
        Binding("enter", "explain_chart", "what is this", id="curves.explain",
                tooltip="Explain the chosen metric"),
        Binding("m", "metrics", "metrics", id="curves.metrics",
                tooltip="Choose any metrics to draw"),
    ]  # fmt: skip

    snapshot: reactive[Snapshot] = reactive(Snapshot, always_update=True)
    cursor: reactive[int] = reactive(0)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("curves", **kwargs)
        self._top = 0  # the first row of charts that is shown
        self._columns = 1
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
        """The charts that fit, row by row, in one column or two."""
        snapshot, charts = self.snapshot, charts_of(self.snapshot)
        self._starts = []
        if not charts:
            return _empty(snapshot, self.palette)
        columns = self._columns = 2 if width >= TWO_COLUMNS and len(charts) > 1 else 1
        each = (width - (columns - 1) * GAP) // columns
        axis = 1 if height >= AXIS_FROM else 0
        cursor = min(self.cursor, len(charts) - 1)
        rows = rows_of(charts, snapshot, columns, TIGHT if height < 6 * ROOMY else ROOMY)
        sizes = self._scroll(rows, height - axis, cursor)
        lines: list[Line] = []
        shown = 0
        for (members, _), size in zip(rows[self._top :], sizes, strict=False):
            blocks = []
            for place, index in enumerate(members):
                self._starts.append((index, place * (each + GAP), len(lines), size))
                blocks.append(
                    self._chart(charts[index], each, size, index == cursor and self.has_focus)
                )
            lines += side_by_side(blocks, each)
            shown += len(members)
        hidden = len(charts) - shown
        more = f" · {hidden} more ↓" if hidden > 0 else ""
        self.note_first(f"values and lines smoothed, dots as recorded{more}", f"smoothed{more}")
        if not axis:
            return lines
        below = [[step_axis(last_step(snapshot), each, self.palette)]] * columns
        gap: list[Line] = [[] for _ in range(height - 1 - len(lines))]
        return [*lines, *gap, *side_by_side(below, each)]

    def _scroll(self, rows: Sequence[Row], room: int, cursor: int) -> list[int]:
        """The heights of the rows from the first one shown on, with the chosen chart among them."""
        place = next(i for i, (members, _) in enumerate(rows) if cursor in members)
        telling = -(-TELLING // self._columns)
        for top in range(min(self._top, place), place + 1):
            least = [lines for _, lines in rows[top:]]
            sizes = heights(room, least, telling - top) or [room]
            if top + len(sizes) > place:
                break
        while top and sum(lines for _, lines in rows[top - 1 :]) <= room:
            top -= 1  # no empty lines below the last row
            sizes = heights(room, [lines for _, lines in rows[top:]], telling - top)
        self._top = top
        return sizes

    def _chart(self, chart: Chart, width: int, height: int, marked: bool) -> list[Line]:
        """The lines of a chart, cached until their content changes."""
        snapshot = self.snapshot
        views = tuple(snapshot.series.get(key) for key in chart.keys)
        shown = (views, width, height, marked, self.palette, snapshot.step,
                 snapshot.head.total_steps, guides_of(chart, snapshot),
                 snapshot.weights)  # fmt: skip
        kept = self._kept.get(chart)
        if kept is None or kept[0] != shown:
            lines = chart_lines(chart, snapshot, width, height, self.palette, marked)
            kept = self._kept[chart] = (shown, lines)
        return kept[1]

    def action_step(self, by: int) -> None:
        """Move the cursor by some rows of charts."""
        self.action_aside(by * self._columns)

    def action_aside(self, by: int) -> None:
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


def rows_of(charts: Sequence[Chart], snapshot: Snapshot, columns: int, least: int) -> list[Row]:
    """The places of the charts of each row with the lines that it needs."""
    live = sum(not is_constant(chart, snapshot) for chart in charts)
    parts = ((range(live), least), (range(live, len(charts)), 1))
    rows = [(part[i : i + columns], lines) for part, lines in parts
            for i in range(0, len(part), columns)]  # fmt: skip
    if least == ROOMY and charts[0].keys[0] == "reward":  # with the list of its functions
        rows[0] = (rows[0][0], least + len(charts[0].keys) - 1)
    return rows


def side_by_side(blocks: list[list[Line]], width: int) -> list[Line]:
    """One chart, or two beside each other, the left one `width` wide."""
    if len(blocks) == 1:
        return blocks[0]
    lines: list[Line] = []
    for left, right in zip(*blocks, strict=True):
        used = sum(cell_len(text) for text, _ in left)
        lines.append([*left, (" " * (width - used + GAP), None), *right])
    return lines


def _empty(snapshot: Snapshot, palette: Palette) -> list[Line]:
    text = " Curves begin after step 1."
    if snapshot.status == "empty":
        text = " The curves of a run appear here."
    elif snapshot.reading:
        text = " The run is being read."
    return [[(text, style(palette.label))]]
