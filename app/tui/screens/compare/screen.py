"""The Compare screen: runs side by side, by keyboard and mouse; all reads are off the UI thread."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from textual import on, work
from textual.app import ComposeResult
from textual.containers import Grid
from textual.reactive import reactive

from grpo_engine.metrics import spec
from grpo_tui.app.charts.series import SMOOTHINGS
from grpo_tui.app.charts.stored import CurveLoader
from grpo_tui.app.text.numbers import clamped
from grpo_tui.app.text.words import count_of
from grpo_tui.app.tui import messages as msg
from grpo_tui.app.tui.dialogs.help.subject import HelpSubject
from grpo_tui.app.tui.dialogs.picker import Picker, PickerItem, PickerResult, metric_items
from grpo_tui.app.tui.exporting import (
    Export,
    chart_exports,
    file_stem,
    page_export,
    table_export,
)
from grpo_tui.app.tui.keys import LAST, bindings
from grpo_tui.app.tui.screens.base import WorkbenchScreen
from grpo_tui.app.tui.screens.compare.export import read_curves, table_rows
from grpo_tui.app.tui.screens.compare.panels import (
    CardPanel,
    ComparePagePanel,
    ComparePanel,
    CurvesPanel,
    MetricsPanel,
    RunsPanel,
    SettingsPanel,
    VerdictLine,
)
from grpo_tui.app.tui.screens.compare.render import last_text
from grpo_tui.app.tui.screens.compare.state import (
    MAX_LISTED,
    ONE_COLUMN,
    PAGES,
    TWO_PAGES,
    CompareView,
    list_runs,
    load_comparison,
    load_completions,
    load_prompts,
    load_runs,
    rows_of,
)
from grpo_tui.app.tui.store.reader import reporting
from grpo_tui.app.tui.widgets.pages import PagesPanel
from grpo_tui.app.tui.widgets.panel import Panel
from grpo_tui.experiments.compare.runs import AMOUNTS
from grpo_tui.experiments.errors import StoreError
from grpo_tui.experiments.values import RunSummary

POLL_S = 0.5
REST_S = 0.2
PATIENCE = 6  # a read that took t seconds is not repeated within 6 t
MAX_ROW = 5000  # lines of answers
NEED_RUNS = frozenset(("axis", "metrics", "turn", "baseline", "find", "open"))


class CompareScreen(WorkbenchScreen):
    """Runs side by side."""

    mode = "compare"
    find_hint = "find settings and metrics by name"
    CSS_PATH = "compare.tcss"
    BINDINGS = bindings("compare")

    view: reactive[CompareView] = reactive(CompareView, repaint=False)

    def body(self) -> ComposeResult:
        """Verdict, legend beside settings, curves, a page below; a hint card without runs.

        On a wide screen the metrics stand beside curves and page.
        """
        yield CardPanel("compare", id="card")
        yield VerdictLine(id="verdict")
        with Grid(id="panels"):
            yield RunsPanel("legend", id="runs")
            yield SettingsPanel("changed settings", id="settings")
            yield CurvesPanel("curves", id="curves")
            yield MetricsPanel("metrics", id="metrics")
            yield ComparePagePanel("metrics", id="page")

    def __init__(self) -> None:
        super().__init__()
        self._curve_loader = CurveLoader()
        self._wait_until = 0.0
        self._reading = 0
        self._marked: tuple[str, ...] = ()  # the runs last marked on Runs

    def on_mount(self) -> None:
        """Show the hint card until there are runs, and poll for changes while active."""
        self._show_card(not self.view.refs)
        self.set_interval(POLL_S, self._poll)

    def _show_card(self, empty: bool) -> None:
        self.set_class(empty, "-empty")
        self.query_one(CardPanel if empty else CurvesPanel).focus()

    def watch_view(self, new: CompareView) -> None:
        """Pass the view to every panel."""
        if not self.is_mounted:
            return
        view = new.displayed
        drawn = {type(panel) for panel in self.query(ComparePanel) if panel.show_view(view)}
        # While runs are read nothing moves: else panels would move twice.
        if drawn - {RunsPanel, CurvesPanel, MetricsPanel} and not (new.reading and new.runs):
            self._arrange()

    def _arrange(self) -> None:
        """Share the lines by what the panels have to show; what nothing needs is the curves'."""
        if not self.query(ComparePagePanel):
            return  # The screen was closed while the store was read
        width, height = self.app.size
        height -= 2  # tabs and keys
        single = width < ONE_COLUMN
        has_two_columns = width >= TWO_PAGES and self.view.page in ("ranking", "settings")
        page, verdict = self.query_one(ComparePagePanel), self.query_one(VerdictLine)
        runs, settings = self.query_one(RunsPanel), self.query_one(SettingsPanel)
        legend = (
            runs.height_needed() if single else max(runs.height_needed(), settings.height_needed())
        )
        rows = rows_of(
            height,
            sentences=verdict.height_needed(width, height),
            page=page.height_needed(width * 3 // 5 if has_two_columns else width),
            legend=legend + 3,
            focused=(self.focused.id if self.focused else None) or "",
        )
        verdict.styles.height = rows["verdict"]
        grid = self.query_one("#panels").styles
        grid.grid_size_columns = 1 if single else 2
        grid.grid_rows = " ".join(str(rows[name]) for name in ("runs", "curves", "page"))
        settings.display = not single
        grid.grid_columns = "3fr 2fr" if has_two_columns else "1fr"
        self.query_one(MetricsPanel).display = has_two_columns
        self.query_one(CurvesPanel).styles.column_span = 1 if single or has_two_columns else 2
        page.styles.column_span = 1 if single or has_two_columns else 2

    def on_descendant_focus(self) -> None:
        """Open the panel that has the focus, where not all can be."""
        self._arrange()

    @property
    def ready(self) -> bool:
        """Whether the runs have been read, and the run on Watch among them."""
        return super().ready and self.has_followed_run

    def run_opened(self, run: str) -> None:
        """Compare it, in place of other ones."""
        if run not in self.view.refs:
            self.compare((run,))

    def receive(self, message: msg.CompareRequested) -> None:
        """Compare the runs sent by another screen."""
        self._marked = self.workbench.marked  # they no longer count
        self.compare(message.refs)

    def on_screen_resume(self) -> None:
        """Show at once what was marked or changed meanwhile."""
        marked, self._marked = self._marked, self.workbench.marked
        if self._marked != marked and len(self._marked) > 1:
            self.compare(self._marked)
        elif self.view.refs:
            self.reload()

    # -- reading ----------------------------------------------------------------------------

    @work(exclusive=True, group="poll")
    async def _poll(self) -> None:
        if self._reading or time.monotonic() < self._wait_until:
            return
        if self.is_current and self.view.refs:
            with suppress(StoreError, asyncio.CancelledError):
                if await self.read("changed", lambda reader: reader.changed()):
                    self.reload()

    def reload(self) -> None:
        """Reload the comparison, then the curves and what else is shown."""
        worker = self._read()
        if self.view.reading:
            self.opening = worker

    @work(exclusive=True, group="comparison")
    async def _read(self) -> None:
        view, began = self.view, time.monotonic()
        self._reading += 1
        with reporting(self):
            if view.reading:
                self.update(requested=await self.read("names", load_runs, view.refs))
            comparison = await self.read(
                "comparison", load_comparison, view.refs, view.baseline, view.axis, view.at
            )
            ids = tuple(run.id for run in comparison.runs)
            if ids != view.refs:  # names, or some are no longer stored
                self.compare(ids)
            else:
                self.view = self.view.with_comparison(comparison)
                self.draw()
                self.read_more()
        self._reading -= 1
        self._wait_until = time.monotonic() + PATIENCE * (time.monotonic() - began)

    @work(exclusive=True, group="curves")
    async def _draw(self) -> None:
        view = self.view
        if not view.runs or not self.query(CurvesPanel):
            return  # The screen may have been closed while the store was read.
        curves = self.query_one(CurvesPanel)
        request = view.request(curves.in_sight(), curves.pixels)
        with reporting(self):
            self.update(charts=await self.read("curves", self._curve_loader.charts, request))

    @work(exclusive=True, group="crosshair")
    async def read_at_crosshair(self) -> None:
        """Read data that depends on the crosshair, once it has stopped moving."""
        await asyncio.sleep(REST_S)
        self.reload()

    def compare(self, refs: tuple[str, ...]) -> None:
        """Compare these runs side by side, until another one is opened on Watch."""
        self._followed_run = self.run_on_watch or self._followed_run
        self.view = self.view.with_refs(refs)
        self._show_card(not refs)
        self.refresh_bindings()
        if refs:
            self.reload()

    def action_pick(self) -> None:
        """Let the user choose which runs to compare."""
        picker = Picker(
            "runs to compare",
            self._items,
            verb="compare",
            marks=self.view.refs,
            cursor=self.snapshot.head.id,
            adds=True,
        )
        self.app.push_screen(
            picker, lambda result: self.compare(result.marks) if result is not None else None
        )

    async def _items(self, text: str) -> Sequence[PickerItem]:
        base = self.view.chosen
        runs = await self.read("pick", list_runs, text, base)
        return [PickerItem(run.id, (run.title, text)) for run, text in runs]

    @work(exclusive=True, group="sweep")
    async def action_sweep(self) -> None:
        """Compare the chosen run's sweep and no other runs; the newest sweep if it has none."""
        runs: Sequence[RunSummary] = ()
        with reporting(self):
            runs = await self.read("sweep", lambda r: r.runs(limit=MAX_LISTED))
        chosen = [self.view.chosen] if self.view.chosen else []
        sweep = next((run.sweep_id for run in (*chosen, *runs) if run.sweep_id is not None), None)
        if sweep is not None:
            self.compare(tuple(run.id for run in reversed(runs) if run.sweep_id == sweep))
        else:
            self.notify("No run is part of a sweep; + adds runs one by one.")

    @work(exclusive=True, group="page")
    async def read_more(self) -> None:
        """Read the answers to the prompt, if they are shown."""
        view = self.view
        runs, prompts = view.runs, view.prompts
        if view.page != "answers" or not runs:
            return
        with reporting(self):
            if prompts is None:
                prompts = await self.read("prompts", load_prompts, runs)
                self.update(prompts=prompts)
            if prompts:
                prompt = prompts[clamped(view.prompt, len(prompts))]
                completions = await self.read(
                    "completions", load_completions, runs, prompt, view.axis, view.x
                )
                self.update(completions=completions)

    def _size_classes(self) -> None:
        super()._size_classes()
        self._arrange()

    @on(CurvesPanel.Resized)
    def draw(self) -> None:
        """Load and draw the visible curves."""
        if self.view.runs:
            worker = self._draw()
            if not self.view.charts.charts:
                self.opening = worker

    @on(CurvesPanel.Clicked)
    def pick_chart(self, message: CurvesPanel.Clicked) -> None:
        """Choose the chart, and put the crosshair there."""
        self.view = replace(self.view, chart=message.chart).with_crosshair(message.x)
        self.read_at_crosshair()

    @on(Panel.Moved, "#curves")
    def move_in_curves(self, message: Panel.Moved) -> None:
        """Choose another chart; to the side, and to both ends, move the crosshair."""
        if message.columns or abs(message.rows) == LAST:
            self.action_step(message.columns or message.rows)
        else:
            self.action_down(message.rows)

    def exports(self) -> Iterator[Export]:
        """The page below the curves, the chosen chart, and the comparison as a page."""
        view, store, curves = self.view.displayed, self.workbench.store, self.query_one(CurvesPanel)
        if not view.runs:
            return
        description = f"the page {view.page}, as CSV in full precision"
        yield table_export("table", description, f"compare-{view.page}", partial(table_rows, view))
        if metric := view.metric:
            title, read = spec(metric).label, partial(read_curves, store, view, metric)
            stem = file_stem(f"compare-{title}")
            yield from chart_exports(title, stem, read, view.axis, curves.log_metrics)
        description = (
            f"{count_of(len(view.runs), 'run')} with their answers, as one HTML file for browsers"
        )
        yield page_export(store, view.runs, description)

    # -- crosshair and curves ---------------------------------------------------------------

    def action_step(self, by: int) -> None:
        """Move the crosshair; tables follow once it stops."""
        pixels = self.query_one(CurvesPanel).pixels
        self.view = self.view.moved(by, pixels // 2)
        self.read_at_crosshair()

    def action_go_to(self) -> None:
        """Ask where to move the crosshair."""
        hint = "A step, tokens or seconds, as on the axis; the crosshair goes there."
        self.input_number("crosshair", hint, float, self._go_to, f"{self.view.x:g}")

    def _go_to(self, x: float) -> None:
        self.view = self.view.with_crosshair(x)
        self.read_at_crosshair()

    def action_axis(self) -> None:
        """Switch to the next axis and move the crosshair to the common end."""
        axes = [*AMOUNTS]
        self.update(axis=axes[(axes.index(self.view.axis) + 1) % len(axes)], at=None)
        self.reload()

    def action_smooth(self, by: int) -> None:
        """Smooth more or less."""
        self.update(smooth=clamped(self.view.smooth + by, len(SMOOTHINGS)))
        self.draw()

    def action_metrics(self) -> None:
        """Choose which metrics are drawn."""
        keys = self.view.metric_keys()
        if not keys:
            return
        picker = Picker("metrics to draw", metric_items(keys), verb="draw", marks=self.view.metrics)
        self.app.push_screen(picker, self._draw_metrics)

    def _draw_metrics(self, result: PickerResult | None) -> None:
        if result is not None and result.marks:
            marks = result.marks
            new = [index for index, key in enumerate(marks) if key not in self.view.metrics]
            self.update(metrics=marks, chart=new[-1] if new else 0)
            self.draw()

    def action_down(self, by: int) -> None:
        """Move to another chart."""
        count = len(self.view.metrics)
        if count:
            chart = clamped(self.view.chart, count)
            self.update(chart=self.query_one(CurvesPanel).below(chart, by, count))
            self.draw()

    # -- requests from panels and other screens ------------------------------------------------

    def check_action(self, action: str, _parameters: tuple[object, ...]) -> bool | None:
        """Without runs, offer only the keys that add some."""
        return bool(self.view.refs) or action not in NEED_RUNS

    def help_subject(self, topic: str) -> HelpSubject:
        """The compared runs; the one on Watch may be none of them."""
        view, key = self.view, topic.removeprefix("metric:")
        cells = [(run, view.cell(key, run.id)) for run in view.runs]
        values = tuple((view.name(run), last_text(cell, key)) for run, cell in cells if cell)
        return HelpSubject(topic, compared=values)

    def find(self, text: str) -> None:
        """Keep the settings and metrics that match the text."""
        self.update(filter=text, row=0)

    @on(Panel.Moved, "#runs")
    def move_run(self, message: Panel.Moved) -> None:
        self.action_run(message.rows)

    @on(Panel.Moved, "#page")
    def move_row(self, message: Panel.Moved) -> None:
        """Move through the rows of a table; to the side, choose another run's column."""
        view = self.view
        if message.columns:
            self.action_run(message.columns)
            return
        tables = {
            "settings": len(view.settings()) + len(view.comparison.sources),
            "answers": MAX_ROW,
        }
        self.update(row=clamped(view.row + message.rows, tables.get(view.page, len(view.rows))))

    # -- runs -------------------------------------------------------------------------------

    def action_bands(self) -> None:
        """Toggle between seeds as mean with interval and single runs."""
        if not self.view.comparison.seeds:
            self.notify("No two of these runs differ only in the seed.")
            return
        self.update(bands=not self.view.bands)
        self.draw()

    def action_run(self, by: int) -> None:
        """Choose another run."""
        self.update(run=clamped(self.view.run + by, len(self.view.runs)))

    def action_baseline(self) -> None:
        """Make the chosen run the baseline."""
        if self.view.chosen is not None:
            self.update(baseline=self.view.chosen.id)
            self.reload()

    def action_remove(self) -> None:
        """Remove the chosen run from the comparison."""
        run = self.view.chosen
        if run is not None:
            self.compare(tuple(ref for ref in self.view.refs if ref != run.id))

    # -- pages ------------------------------------------------------------------------------

    def action_turn(self, by: int) -> None:
        """Go to another page."""
        self.show_page(PAGES[(PAGES.index(self.view.page) + by) % len(PAGES)])

    @on(PagesPanel.PageClicked)
    def turn_to(self, message: PagesPanel.PageClicked) -> None:
        self.show_page(message.page)

    def show_page(self, page: str) -> None:
        """Show a page."""
        self.update(page=page, row=0)
        self.read_more()

    def action_prompt(self, by: int) -> None:
        """Show answers to another prompt; if the page is hidden, show it first."""
        count = len(self.view.prompts or ())
        if self.view.page == "answers" and count:
            self.update(prompt=(self.view.prompt + by) % count, row=0)
            self.read_more()
        else:
            self.show_page("answers")

    def action_open(self) -> None:
        """Open the item under the cursor."""
        page = self.view.page if isinstance(self.focused, ComparePagePanel) else ""
        if page == "settings":
            self.update(everything=not self.view.everything, row=0)
        elif page == "answers":
            self.open_rollout()
        elif page == "metrics" or isinstance(self.focused, CurvesPanel):
            self.action_explain()
        elif self.view.chosen is not None:
            self.post_message(msg.RunOpened(self.view.chosen.id, self.view.chosen.title))

    def open_rollout(self) -> None:
        """Show the chosen run's answers token by token."""
        view = self.view
        groups = view.completions.groups if view.completions is not None else {}
        group = groups.get(view.chosen.id) if view.chosen is not None else None
        if group is not None:
            self.post_message(
                msg.RolloutOpened(group.run, group.step, group.origin, group.index, rollout=0)
            )
