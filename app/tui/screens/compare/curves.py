"""The curves pane: charts of the chosen metrics with a shared crosshair."""

from dataclasses import dataclass
from typing import Any

from textual import events
from textual.message import Message

from grpo_tui.app.tui.looks.colours import style
from grpo_tui.app.tui.screens.compare.panels import ViewPanel
from grpo_tui.app.tui.screens.compare.plot import (
    LABELS,
    axis_line,
    chart_lines,
    cross_position,
    plot,
)
from grpo_tui.app.tui.widgets.charts.curves import side_by_side
from grpo_tui.app.tui.widgets.panel import Line

TWO_COLUMNS = 116
TALL = 8
AXIS_WORDS = {"step": "by step", "tokens": "at equal tokens", "wall": "at equal wall time"}


@dataclass
class ChartPicked(Message):
    """A chart was clicked: choose it and move the crosshair there; `zoom` by the mouse wheel."""

    chart: int
    x: float | None
    zoom: int = 0


@dataclass
class Panned(Message):
    """The wheel asked for an earlier or later part of the axis."""

    by: int


@dataclass
class CurvesResized(Message):
    """The width of the charts has changed."""


class CurvesPanel(ViewPanel):
    """Charts of the chosen metrics, stacked, with a shared crosshair."""

    navigable = True

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("curves", **kwargs)
        self._top = 0
        self._boxes: list[tuple[int, int, int, int, int]] = []
        self._plots: dict[tuple[Any, ...], Any] = {}

    @property
    def pixels(self) -> int:
        """The width of a chart in pixel columns."""
        columns, _ = self._rows()
        return max(2, 2 * ((self.inner.width - (columns - 1) * 2) // columns - LABELS))

    def on_resize(self) -> None:
        """Request curves for the new width."""
        self.post_message(CurvesResized())

    def _rows(self) -> tuple[int, int]:
        """The number of columns and rows of charts."""
        wide = self.inner.width >= TWO_COLUMNS
        count = 1 if self.view.solo else max(1, len(self.view.metrics))
        columns = 2 if wide and count > 1 else 1
        return columns, max(1, min(-(-count // columns), (self.inner.height - 1) // TALL))

    def in_sight(self) -> tuple[str, ...]:
        """The metrics whose charts fit, including the chosen one."""
        view = self.view
        if view.solo or not view.metrics:
            return (view.metric,) if view.metric else ()
        columns, fit = self._rows()
        line = min(view.chart, len(view.metrics) - 1) // columns
        last = -(-len(view.metrics) // columns) - fit
        self._top = max(line - fit + 1, max(0, min(self._top, line, last)))
        return view.metrics[self._top * columns : (self._top + fit) * columns]

    def _about(self) -> str:
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

    def paint(self, width: int, height: int) -> list[Line]:
        """The charts that fit, then the axis."""
        view, palette = self.view, self.palette
        data = view.charts
        self._boxes = []
        self.note = self._about()
        if data is None:
            return [[("reading", style(palette.label))]]
        if not view.metrics:
            return [[("No metrics are recorded yet.", style(palette.label))]]
        each = data.request.wide // 2 + LABELS
        columns, fit = self._rows()
        columns = columns if each * columns + 2 * (columns - 1) <= width else 1
        keys = self.in_sight()
        loaded = {chart.key: chart for chart in data.charts}
        heights = [(height - 1) // fit + (place < (height - 1) % fit) for place in range(fit)]
        lines: list[Line] = []
        for place, tall in enumerate(heights):
            blocks: list[list[Line]] = []
            for column, key in enumerate(keys[place * columns : (place + 1) * columns]):
                index, left = view.metrics.index(key), column * (each + 2)
                self._boxes.append((index, left, len(lines), each, tall))
                chart = loaded.get(key)
                blocks.append(
                    self._chart(chart, key == view.metric, each, tall) if chart else
                    [[(f" {key}: reading", style(palette.label))], *([[]] * (tall - 1))]
                )  # fmt: skip
            lines += side_by_side(blocks, each) if blocks else [[]] * tall
        more = 0 if view.solo else len(view.metrics) - len(keys)
        self.title = f"curves · {more} more ↕" if more > 0 else "curves"
        axis = axis_line(view, each, data.span, palette, data.first)
        return [*lines, axis if columns == 1 else side_by_side([[axis], [axis]], each)[0]]

    def _chart(self, chart: Any, chosen: bool, width: int, height: int) -> list[Line]:
        view, palette = self.view, self.palette
        data = view.charts
        assert data is not None
        size = (width - LABELS, max(1, height - 1))
        front = view.chosen.id if view.chosen else ""
        key = (id(chart), size, palette.name, view.hidden, front, view.bands, view.log)
        if key not in self._plots:
            kept = {id(one) for one in data.charts}
            self._plots = {k: v for k, v in self._plots.items() if k[0] in kept}
            # keep a reference to the chart, so that its id is not reused.
            self._plots[key] = (chart, plot(chart, view, *size, palette))
        cells, scale = self._plots[key][1]
        return chart_lines(chart, view, cells, scale, width, palette, chosen, data.span,
                           data.first)  # fmt: skip

    def _pick(self, event: events.MouseEvent, zoom: int = 0) -> None:
        place = self.inside(event.offset)
        data = self.view.charts
        for index, left, top, wide, tall in self._boxes:
            if top <= place.y < top + tall and left <= place.x < left + wide and data is not None:
                column = place.x - left - LABELS
                here = data.first + cross_position(column, data.span, wide - LABELS)
                self.post_message(ChartPicked(index, here if column >= 0 else None, zoom))

    def on_click(self, event: events.Click) -> None:
        """Choose the clicked chart and move the crosshair there."""
        self._pick(event)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Show less of the axis around the pointer; with shift, an earlier part."""
        self._wheel(event, 1)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Show more of the axis; with shift, a later part."""
        self._wheel(event, -1)

    def _wheel(self, event: events.MouseEvent, by: int) -> None:
        event.stop()
        if event.shift:
            self.post_message(Panned(-by))
        else:
            self._pick(event, by)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Drag the crosshair."""
        if event.button:
            self._pick(event)
