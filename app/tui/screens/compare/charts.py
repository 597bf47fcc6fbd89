"""ChartScreen: charts of stored runs with crosshair, zoom, smoothing and a choice of metrics.

Compare shows them for several runs, and Watch for one while it trains. All reads are off the UI
thread.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import ClassVar

from textual import on, work
from textual.reactive import reactive

from grpo_engine.metrics import spec
from grpo_tui.app.charts.series import SMOOTHINGS
from grpo_tui.app.charts.stored import CurveLoader, CurveRequest
from grpo_tui.app.text.numbers import clamped
from grpo_tui.app.tui.dialogs.ask import Ask
from grpo_tui.app.tui.dialogs.picker import Item, Picked, Picker
from grpo_tui.app.tui.keys import LAST, bind, hidden, unbound
from grpo_tui.app.tui.screens.base import WorkbenchScreen
from grpo_tui.app.tui.screens.compare.curves import CurvesPanel, CurvesResized
from grpo_tui.app.tui.screens.compare.panels import ViewPanel
from grpo_tui.app.tui.screens.compare.state import AXES, Loaded, View, load_comparison
from grpo_tui.app.tui.store.reader import reporting
from grpo_tui.app.tui.widgets.panel import Panel
from grpo_tui.experiments.errors import StoreError

REST_S = 0.2
PATIENCE = 6  # a read that took t seconds is not repeated within 6 t


class ChartScreen(WorkbenchScreen):
    """A screen with a `CurvesPanel` on runs of the store."""

    BINDINGS: ClassVar = [
        hidden("less_than_sign", "cross(-1)", "previous step", "compare.before",
               "Move the crosshair back, as the left arrow does"),
        hidden("greater_than_sign", "cross(1)", "next step", "compare.after",
               "Move the crosshair forward"),
        hidden("left_curly_bracket", "cross(-10)", "ten steps back", "compare.far_left",
               "Move the crosshair back by ten"),
        hidden("right_curly_bracket", "cross(10)", "ten steps forward", "compare.far_right",
               "Move the crosshair forward by ten"),
        hidden("at", "go_to", "step to show", "compare.place",
               "Type the step, tokens or seconds the crosshair goes to", "@"),
        bind("a", "axis", "axis", "compare.axis",
             "Curves by step, at equal tokens, or at equal wall time"),
        bind("m", "metrics", "metrics", "compare.metrics", "Choose the metrics to draw"),
        hidden("minus", "smooth(-1)", "less smooth", "compare.less", "Smooth the curves less"),
        hidden("equals_sign", "smooth(1)", "more smooth", "compare.more", "Smooth the curves more"),
        unbound("switch('log')", "log axis", "compare.log", "Logarithmic vertical axis, or linear"),
        unbound("switch('solo')", "one chart", "compare.solo", "Only the chosen chart, or all"),
        unbound("zoom_axis(1)", "less of the axis", "compare.closer",
                "Show half as much of the axis, around the crosshair"),
        unbound("zoom_axis(-1)", "more of the axis", "compare.wider",
                "Show twice as much of the axis"),
        unbound("pan(-1)", "earlier part", "compare.earlier", "Show an earlier part of the axis"),
        unbound("pan(1)", "later part", "compare.later", "Show a later part of the axis"),
    ]  # fmt: skip

    view: reactive[View] = reactive(View, repaint=False)

    def __init__(self) -> None:
        super().__init__()
        self._curve_loader = CurveLoader()
        self._wait_until = 0.0
        self._reading = 0

    # -- for subclasses ---------------------------------------------------------------------

    def compare_only(self, refs: Sequence[str]) -> None:
        """Show only these runs: the others are no longer stored."""
        raise NotImplementedError

    def changed_without_runs(self) -> None:
        """React to a change of the store while no run is shown."""

    def read_more(self) -> None:
        """Read what the screen shows beside the curves."""

    # -- reading ----------------------------------------------------------------------------

    @work(exclusive=True, group="poll")
    async def _poll(self) -> None:
        if not self.is_current or self._reading or time.monotonic() < self._wait_until:
            return
        changed = False
        with suppress(StoreError, asyncio.CancelledError):
            changed = await self.ask(lambda reader: reader.changed(), "changed")
        if changed and self.view.refs:
            self.reload()
        elif changed:
            self.changed_without_runs()

    def reload(self) -> None:
        """Reload the comparison, then the curves and what else is shown."""
        worker = self._read()
        if self.view.comparison is None:
            self.opening = worker

    @work(exclusive=True, group="comparison")
    async def _read(self) -> None:
        view, began = self.view, time.monotonic()
        loaded: Loaded | None = None
        self._reading += 1
        with reporting(self):
            loaded = await self.ask(
                lambda r: load_comparison(
                    r, view.refs, view.baseline, view.axis, view.at, view.reach
                ),
                "comparison",
            )  # fmt: skip
        self._reading -= 1
        if loaded is None:
            self.update(reading=False)
            return
        self._wait_until = time.monotonic() + PATIENCE * (time.monotonic() - began)
        if loaded.missing:
            refs = tuple(ref for ref in self.view.refs if ref not in loaded.missing)
            names = {run.id: run.name for run in view.runs}
            missing = ", ".join(names.get(ref) or ref for ref in loaded.missing)
            self.warn(f"No longer stored: {missing}")
            self.compare_only(refs)
            return
        self.view = self.view.with_comparison(loaded.comparison)
        self.draw()
        self.read_more()

    @work(exclusive=True, group="curves")
    async def _draw(self) -> None:
        view, comparison = self.view, self.view.comparison
        if comparison is None or not self.query(CurvesPanel):
            return  # or the screen was closed while the store was read
        curves = self.query_one(CurvesPanel)
        request = CurveRequest(
            runs=view.runs, metrics=curves.in_sight(), axis=view.axis, smoothing=view.smoothing,
            log=view.log, wide=curves.pixels, window=view.window,
            seeds=tuple(group.runs for group in comparison.seeds) if view.bands else (),
        )  # fmt: skip
        parts = [request]
        if view.charts is None and view.metric:
            parts.insert(0, replace(request, metrics=(view.metric,)))
        with reporting(self):
            for part in parts:
                read = partial(self._curve_loader.charts, request=part)
                self.update(charts=await self.ask(read, "curves"))

    @work(exclusive=True, group="crosshair")
    async def read_at_crosshair(self) -> None:
        """Read data that depends on the crosshair, once it has stopped moving."""
        await asyncio.sleep(REST_S)
        self.reload()

    def watch_view(self, _old: View, new: View) -> None:
        """Pass the view to every panel."""
        if self.is_mounted:
            for panel in self.query(ViewPanel):
                panel.view = new

    def _size_classes(self) -> None:
        super()._size_classes()
        self.watch_view(self.view, self.view)

    @on(CurvesResized)
    def draw(self) -> None:
        """Load and draw the visible curves."""
        if self.view.comparison is not None:
            worker = self._draw()
            if self.view.charts is None:
                self.opening = worker

    def action_pick_chart(self, chart: int, x: float | None, zoom: int) -> None:
        """Choose the chart, and put the crosshair or zoom by the mouse wheel there."""
        view = replace(self.view, chart=chart)
        if zoom:
            self.view = view.zoomed(zoom, x)
            self.draw()
            return
        self.view = view if x is None else view.with_crosshair(x)
        self.read_at_crosshair()

    @on(Panel.Moved, "#curves")
    def move_in_curves(self, message: Panel.Moved) -> None:
        """Choose another chart; to the side, and to both ends, move the crosshair."""
        if message.columns or abs(message.rows) == LAST:
            self.action_cross(message.columns or message.rows)
        else:
            self.action_down(message.rows)

    # -- crosshair and curves ---------------------------------------------------------------

    def action_cross(self, by: int) -> None:
        """Move the crosshair; tables follow once it stops."""
        pixels = self.query_one(CurvesPanel).pixels
        window = self.view.window
        self.view = self.view.moved(by, pixels // 2)
        if self.view.window != window:
            self.draw()
        self.read_at_crosshair()

    def action_go_to(self) -> None:
        """Ask where to move the crosshair."""
        unit = {"step": "a step", "tokens": "a number of tokens", "wall": "seconds"}[self.view.axis]
        dialog = Ask("crosshair", f"Type {unit}; the crosshair goes there.", f"{self.view.x:g}")
        self.app.push_screen(dialog, self._go_to)

    def _go_to(self, text: str | None) -> None:
        if text is None:
            return
        try:
            x = float(text.replace(",", "").replace("_", ""))
        except ValueError:
            self.warn(f"{text!r} is not a number.")
            return
        self.view = self.view.with_crosshair(x).followed()
        self.draw()
        self.read_at_crosshair()

    def action_axis(self) -> None:
        """Switch to the next axis and move the crosshair to the common end."""
        axis = AXES[(AXES.index(self.view.axis) + 1) % len(AXES)]
        self.update(axis=axis, at=None, window=None)
        self.reload()

    def action_zoom_axis(self, by: int) -> None:
        """Show less of the axis around the crosshair, or more."""
        self.view = self.view.zoomed(by)
        self.draw()

    def action_pan(self, by: int) -> None:
        """Show an earlier or later part of the axis."""
        self.view = self.view.panned(by)
        self.draw()

    def switched(self) -> None:
        """Draw the curves anew."""
        self.draw()

    def action_smooth(self, by: int) -> None:
        """Smooth more or less."""
        self.update(smooth=clamped(self.view.smooth + by, len(SMOOTHINGS)))
        self.draw()

    def action_metrics(self) -> None:
        """Choose which metrics are drawn."""
        keys = self.view.metric_keys()
        if not keys:
            return
        items = [Item(key, (spec(key).label, f"{key} · {spec(key).help}"), also=spec(key).also)
                 for key in keys]  # fmt: skip
        picker = Picker("metrics to draw", items, verb="draw", marks=self.view.metrics)
        self.app.push_screen(picker, self._draw_metrics)

    def _draw_metrics(self, result: Picked | None) -> None:
        if result is not None and result.marks:
            marks = result.marks
            new = [key for key in marks if key not in self.view.metrics]
            chart = marks.index(new[-1] if new else result.value
                                if result.value in marks else marks[0])  # fmt: skip
            self.update(metrics=marks, chart=chart)
            self.draw()

    def action_down(self, by: int) -> None:
        """Move to another chart."""
        self.update(chart=clamped(self.view.chart + by, len(self.view.metrics)))
        self.draw()
