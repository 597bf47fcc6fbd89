"""ChartScreen: charts of stored runs with crosshair, zoom, smoothing and a choice of metrics.

Compare shows them for several runs, and Watch for one while it trains. All reads are off the UI
thread.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

from textual import on, work
from textual.binding import Binding, BindingType
from textual.reactive import reactive

from grpo_engine.metrics import spec
from grpo_tui.app.charts.series import SMOOTHINGS
from grpo_tui.app.charts.stored import CurveLoader, CurveRequest
from grpo_tui.app.tui.dialogs.ask import Ask
from grpo_tui.app.tui.dialogs.picker import Item, Picked, Picker
from grpo_tui.app.tui.keys import LAST
from grpo_tui.app.tui.screens.base import WorkbenchScreen
from grpo_tui.app.tui.screens.compare.curves import ChartPicked, CurvesPanel, CurvesResized, Panned
from grpo_tui.app.tui.screens.compare.load import load_comparison
from grpo_tui.app.tui.screens.compare.panels import ViewPanel
from grpo_tui.app.tui.screens.compare.view import AXES, View
from grpo_tui.app.tui.widgets.panel import Panel
from grpo_tui.experiments.errors import StoreError

REST_S = 0.2
PATIENCE = 6  # a read that took t seconds is not repeated within 6 t


class ChartScreen(WorkbenchScreen):
    """A screen with a `CurvesPanel` on runs of the store."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "cross(-1)", "crosshair", id="compare.left", key_display="←→",
                tooltip="Move the crosshair back"),
        Binding("right,l", "cross(1)", "crosshair forward", id="compare.right", show=False,
                tooltip="Move the crosshair forward"),
        Binding("shift+left", "cross(-10)", "crosshair back 10", id="compare.far_left",
                show=False, tooltip="Move the crosshair back by ten"),
        Binding("shift+right", "cross(10)", "crosshair forward 10", id="compare.far_right",
                show=False, tooltip="Move the crosshair forward by ten"),
        Binding("home", "cross(-1000000)", "to the start", id="compare.home", show=False,
                tooltip="Crosshair to the start"),
        Binding("end", "cross(1000000)", "to the end", id="compare.end", show=False,
                tooltip="Crosshair to the end of the longest run"),
        Binding("at", "place", "crosshair to…", id="compare.place", key_display="@", show=False,
                tooltip="Type the step, tokens or seconds the crosshair goes to"),
        Binding("down,j", "down(1)", "choose", id="compare.down", show=False,
                tooltip="Next chart, run or row of the focused panel"),
        Binding("up,k", "down(-1)", "choose above", id="compare.up", show=False,
                tooltip="Chart, run or row above in the focused panel"),
        Binding("a", "axis", "axis", id="compare.axis",
                tooltip="Curves by step, at equal tokens, or at equal wall time"),
        Binding("m", "metrics", "metrics", id="compare.metrics",
                tooltip="Choose the metrics to draw"),
        Binding("L", "log", "log", id="compare.log", show=False,
                tooltip="Logarithmic vertical axis, or linear"),
        Binding("minus", "smooth(-1)", "less smooth", id="compare.less", show=False,
                tooltip="Smooth the curves less"),
        Binding("equals_sign", "smooth(1)", "smoother", id="compare.more", show=False,
                tooltip="Smooth the curves more"),
        Binding("o", "solo", "one chart", id="compare.solo", show=False,
                tooltip="Only the chosen chart, or all"),
        Binding("right_square_bracket", "zoom_axis(1)", "less of the axis", id="compare.closer",
                key_display="[ ]", show=False,
                tooltip="Show half as much of the axis, around the crosshair"),
        Binding("left_square_bracket", "zoom_axis(-1)", "more of the axis", id="compare.wider",
                show=False, tooltip="Show twice as much of the axis"),
        Binding("less_than_sign", "pan(-1)", "earlier", id="compare.earlier", show=False,
                tooltip="Show an earlier part of the axis"),
        Binding("greater_than_sign", "pan(1)", "later", id="compare.later", show=False,
                tooltip="Show a later part of the axis"),
    ]  # fmt: skip

    view: reactive[View] = reactive(View, repaint=False)

    def __init__(self) -> None:
        super().__init__()
        self._curve_loader = CurveLoader()
        self._wait_until = 0.0
        self._reading = 0

    # -- for subclasses ---------------------------------------------------------------------

    def keep(self, refs: Sequence[str]) -> None:
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
        try:
            changed = await self.workbench.reader.ask(lambda reader: reader.changed(), "changed")
        except (StoreError, asyncio.CancelledError):
            return
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
        self._reading += 1
        try:
            found = await self.workbench.reader.ask(
                lambda r: load_comparison(
                    r, view.refs, view.baseline, view.axis, view.at, view.reach
                ),
                "comparison",
            )  # fmt: skip
        except asyncio.CancelledError:
            return
        except StoreError as error:
            self.view = replace(self.view, reading=False)
            self.notify(str(error), severity="error", markup=False)
            return
        finally:
            self._reading -= 1
        self._wait_until = time.monotonic() + PATIENCE * (time.monotonic() - began)
        if found.gone:
            kept = tuple(ref for ref in self.view.refs if ref not in found.gone)
            self.notify(f"No longer stored: {', '.join(found.gone)}", severity="warning",
                        markup=False)  # fmt: skip
            self.keep(kept)
            return
        self.view = self.view.with_comparison(found.comparison)
        self.draw()
        self.read_more()

    def draw(self) -> None:
        """Load and draw the visible curves."""
        if self.view.comparison is not None:
            worker = self._draw()
            if self.view.charts is None:
                self.opening = worker

    @work(exclusive=True, group="curves")
    async def _draw(self) -> None:
        view, found = self.view, self.view.comparison
        if found is None or not self.query(CurvesPanel):
            return  # or the screen was closed while the store was read
        curves = self.query_one(CurvesPanel)
        request = CurveRequest(
            runs=view.runs, metrics=curves.in_sight(), axis=view.axis, smoothing=view.smoothing,
            log=view.log, wide=curves.pixels, window=view.window,
            seeds=tuple(group.runs for group in found.seeds) if view.bands else (),
        )  # fmt: skip
        parts = [request]
        if view.charts is None and view.metric:
            parts.insert(0, replace(request, metrics=(view.metric,)))
        for part in parts:
            try:
                charts = await self.workbench.reader.ask(
                    partial(self._curve_loader.charts, request=part), "curves"
                )
            except asyncio.CancelledError:
                return
            except StoreError as error:
                self.notify(str(error), severity="error", markup=False)
                return
            self.view = replace(self.view, charts=charts)

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
    def read_curves(self) -> None:
        """Reload curves for the new chart width."""
        self.draw()

    @on(ChartPicked)
    def pick_chart(self, message: ChartPicked) -> None:
        """Choose the chart, and put the crosshair or zoom there."""
        view = replace(self.view, chart=message.chart)
        if message.zoom:
            self.view = view.zoomed(message.zoom, message.x)
            self.draw()
            return
        self.view = view if message.x is None else view.put(message.x)
        self.read_at_crosshair()

    @on(Panned)
    def pan_with_wheel(self, message: Panned) -> None:
        """Show an earlier or later part of the axis."""
        self.action_pan(message.by)

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

    def action_place(self) -> None:
        """Ask where to move the crosshair."""
        unit = {"step": "a step", "tokens": "a number of tokens", "wall": "seconds"}[self.view.axis]
        ask = Ask("crosshair", f"Type {unit}; the crosshair goes there.", f"{self.view.x:g}")
        self.app.push_screen(ask, self._place)

    def _place(self, text: str | None) -> None:
        if text is None:
            return
        try:
            x = float(text.replace(",", "").replace("_", ""))
        except ValueError:
            self.notify(f"{text!r} is not a number.", severity="warning", markup=False)
            return
        self.view = self.view.put(x).followed()
        self.draw()
        self.read_at_crosshair()

    def action_axis(self) -> None:
        """Switch to the next axis and move the crosshair to the common end."""
        axis = AXES[(AXES.index(self.view.axis) + 1) % len(AXES)]
        self.view = replace(self.view, axis=axis, at=None, window=None)
        self.reload()

    def action_zoom_axis(self, by: int) -> None:
        """Show less of the axis around the crosshair, or more."""
        self.view = self.view.zoomed(by)
        self.draw()

    def action_pan(self, by: int) -> None:
        """Show an earlier or later part of the axis."""
        self.view = self.view.panned(by)
        self.draw()

    def action_log(self) -> None:
        """Toggle between a logarithmic and a linear vertical axis."""
        self.view = replace(self.view, log=not self.view.log)
        self.draw()

    def action_smooth(self, by: int) -> None:
        """Smooth more or less."""
        place = max(0, min(len(SMOOTHINGS) - 1, self.view.smooth + by))
        self.view = replace(self.view, smooth=place)
        self.draw()

    def action_solo(self) -> None:
        """Toggle between the chosen chart alone and all charts."""
        self.view = replace(self.view, solo=not self.view.solo)
        self.draw()

    def action_metrics(self) -> None:
        """Choose which metrics are drawn."""
        known = self.view.known_metrics()
        if not known:
            return
        items = [Item(key, (spec(key).label, f"{key} · {spec(key).help}"), also=spec(key).also)
                 for key in known]  # fmt: skip
        picker = Picker("metrics to draw", items, verb="draw", marks=self.view.metrics)
        self.app.push_screen(picker, self._draw_metrics)

    def _draw_metrics(self, picked: Picked | None) -> None:
        if picked is not None and picked.marks:
            marks = picked.marks
            new = [key for key in marks if key not in self.view.metrics]
            chart = marks.index(new[-1] if new else picked.value
                                if picked.value in marks else marks[0])  # fmt: skip
            self.view = replace(self.view, metrics=marks, chart=chart)
            self.draw()

    def action_down(self, by: int) -> None:
        """Move to another chart."""
        last = max(0, len(self.view.metrics) - 1)
        self.view = replace(self.view, chart=max(0, min(last, self.view.chart + by)))
        self.draw()
