"""The Compare screen: runs side by side, by keyboard and mouse; all reads are off the UI thread."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Horizontal
from textual.message import Message

from grpo_tui.app.text.numbers import short
from grpo_tui.app.tui import messages as msg
from grpo_tui.app.tui.dialogs.ask import Ask
from grpo_tui.app.tui.dialogs.picker import Item, Picked, Picker
from grpo_tui.app.tui.screens.compare.charts import ChartScreen
from grpo_tui.app.tui.screens.compare.curves import CurvesPanel
from grpo_tui.app.tui.screens.compare.load import MOST_LISTED, list_runs, load_answers, load_prompts
from grpo_tui.app.tui.screens.compare.panels import (
    CardPanel,
    PagePanel,
    PagePicked,
    RowPicked,
    RunPicked,
    RunsPanel,
    SettingsPanel,
    VerdictLine,
)
from grpo_tui.app.tui.screens.compare.texts import as_csv, as_json, as_markdown, curves_csv
from grpo_tui.app.tui.screens.compare.view import PAGES, STATS, Page, View
from grpo_tui.experiments.compare.runs import grid, threshold
from grpo_tui.experiments.errors import CompareError, NoStoreError, StoreError
from grpo_tui.experiments.values import RunSummary

POLL_S = 0.5
NEED_RUNS = frozenset(
    ("cross", "common", "zoom_axis", "pan", "place", "down", "axis", "metrics", "page", "baseline",
     "log", "smooth", "run", "hide", "drop", "solo", "bands", "stat", "settings", "prompt", "grid",
     "find", "reach")
)  # fmt: skip


class CompareScreen(ChartScreen):
    """Runs side by side."""

    mode = "compare"
    CSS_PATH = "compare.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "common", "common end", id="compare.common", show=False,
                tooltip="Crosshair to where the shortest run ends"),
        Binding("v", "page(1)", "view", id="compare.page",
                tooltip="Next page: ranking, metrics, settings, seeds, grid, answers"),
        Binding("V", "page(-1)", "previous view", id="compare.page_before", show=False,
                tooltip="Previous page"),
        Binding("plus", "pick", "runs", id="compare.pick", key_display="+",
                tooltip="Add or remove runs"),
        Binding("asterisk", "sweep", "sweep", id="compare.sweep", key_display="*",
                tooltip="Compare the chosen run's sweep and no other runs, or the newest sweep"),
        Binding("b", "baseline", "baseline", id="compare.baseline",
                tooltip="Use the chosen run as the baseline"),
        Binding("J", "run(1)", "next run", id="compare.run", show=False,
                tooltip="Choose the next run"),
        Binding("K", "run(-1)", "previous run", id="compare.run_before", show=False,
                tooltip="Choose the previous run"),
        Binding("space", "hide", "hide run", id="compare.hide", show=False,
                tooltip="Hide the chosen run's curves, or show them"),
        Binding("x", "drop", "remove run", id="compare.drop", show=False,
                tooltip="Remove the chosen run from the comparison"),
        Binding("S", "bands", "seeds as bands", id="compare.bands", show=False,
                tooltip="Draw runs that differ only in the seed as mean and 95% interval"),
        Binding("T", "reach", "threshold", id="compare.reach", show=False,
                tooltip="Type what counts as reached: an accuracy, or METRIC=VALUE"),
        Binding("t", "stat", "last or best values", id="compare.stat", show=False,
                tooltip="Compare last values, best ones, or those at the crosshair"),
        Binding("s", "settings", "all settings", id="compare.settings", show=False,
                tooltip="Show the settings that differ; then equal ones too"),
        Binding("n", "prompt(1)", "next prompt", id="compare.prompt", show=False,
                tooltip="Answers to the next prompt"),
        Binding("p", "prompt(-1)", "previous prompt", id="compare.prompt_before", show=False,
                tooltip="Answers to the previous prompt"),
        Binding("g", "grid(0)", "grid down", id="compare.grid_down", show=False,
                tooltip="Another setting down the grid"),
        Binding("G", "grid(1)", "grid across", id="compare.grid_across", show=False,
                tooltip="Another setting across the grid"),
        Binding("enter", "enter", "open", id="compare.open",
                tooltip="Open the run, draw the metric, or show the answers token by token"),
    ]  # fmt: skip

    def body(self) -> ComposeResult:
        """Verdict, runs beside settings, curves, a page below; a hint card without runs."""
        yield CardPanel(id="card")
        yield VerdictLine(id="verdict")
        with Container(id="top"):
            with Horizontal(id="side"):
                yield RunsPanel(id="runs")
                yield SettingsPanel(id="settings")
            yield CurvesPanel(id="curves")
        yield PagePanel(id="page")

    def __init__(self) -> None:
        super().__init__()
        self._opened = 0  # the open run that was compared unasked
        self._awaits_run = False  # whether the run on Watch was not known yet when it was read
        self._marked = msg.CompareRequested(())  # the runs last marked on Runs

    def on_mount(self) -> None:
        """Show the hint card until there are runs, and poll for changes while active."""
        self.set_class(not self.view.refs, "-empty")
        self._focus_first()
        self.set_interval(POLL_S, self._poll)

    def _focus_first(self) -> None:
        self.query_one(CurvesPanel if self.view.refs else CardPanel).focus()

    def watch_view(self, old: View, new: View) -> None:
        """Give runs, settings and page the rows they need; the curves have the rest."""
        super().watch_view(old, new)
        if not self.query(PagePanel):
            return  # the screen was closed while the store was read
        if self.is_mounted and "top" not in self.arrangement.sizes:
            rows, all_rows = self.query_one(PagePanel).needs(), self.app.size.height - 5
            fraction = max(1.5, all_rows / rows - 1) if rows and not self.has_class("-short") else 0
            self.query_one("#top").styles.height = f"{8 * fraction:.2f}fr" if fraction else None
        if self.is_mounted and "side" not in self.arrangement.sizes:
            runs, settings = self.query_one(RunsPanel), self.query_one(SettingsPanel)
            rows = max(runs.needs(), settings.needs() if settings.display else 0)
            most = 4 if self.has_class("-short") else self.app.size.height // 5
            self.query_one("#side").styles.height = min(rows, most) + 3

    @property
    def ready(self) -> bool:
        """Whether the runs have been read, and the run on Watch among them."""
        return super().ready and not self._awaits_run

    def tick(self, now: float) -> None:
        """Animate the marks of live runs, and show the keys of the hint card while it is there.

        Compare the run on Watch, if it was still opening when this screen came.
        """
        if self._awaits_run and not self.run_is_opening:
            self._awaits_run, self.opening = False, self.read_newest()
        self.query_one(RunsPanel).now = now
        bar, view = self.key_bar, self.view
        offered = not view.refs and len(view.newest) > 1
        bar.renamed = {"enter": "compare the newest"} if offered else {}
        hidden = set() if offered else {"enter"}
        if not view.refs:
            hidden |= {"zoom"} if view.newest else {"zoom", "pick"}
        if not view.swept and all(run.sweep_id is None for run in view.runs):
            hidden.add("sweep")
        bar.hidden = frozenset(hidden)

    def receive(self, message: Message) -> None:
        """Compare the runs sent by another screen."""
        self._marked = self.workbench.marked  # they no longer count
        if isinstance(message, msg.CompareRequested):
            self.compare(message.refs, message.baseline)

    def on_screen_resume(self) -> None:
        """Show at once what was marked or changed meanwhile, and alone the run that was opened."""
        marked, self._marked = self._marked, self.workbench.marked
        if self._marked != marked and len(self._marked.refs) > 1:
            self.compare(self._marked.refs, self._marked.baseline)
        elif self.view.refs:
            self.reload()
        newest = self.read_newest()
        if not self.view.refs:
            self.opening = newest

    # -- reading ----------------------------------------------------------------------------

    def compare(self, refs: tuple[str, ...], baseline: str = "") -> None:
        """Compare these runs side by side."""
        self.view = self.view.with_refs(refs, baseline)
        self.set_class(not refs, "-empty")
        self.refresh_bindings()
        self._focus_first()
        if refs:
            self.reload()
        else:
            self.opening = self.read_newest()

    def keep(self, refs: Sequence[str]) -> None:
        """Compare only these runs."""
        self.compare(tuple(refs))

    def changed_without_runs(self) -> None:
        """Read which runs the hint card can offer."""
        self.read_newest()

    @work(exclusive=True, group="newest")
    async def read_newest(self) -> None:
        """Read the run on Watch, and which runs the hint card can offer."""
        here = self.run_on_watch
        self._awaits_run = self.run_is_opening
        try:
            newest, opened = await self.workbench.reader.ask(
                lambda r: (
                    r.runs(limit=MOST_LISTED, metrics=()),
                    r.runs(archived=True, keys=[here]),
                ),
                "newest",
            )
        except asyncio.CancelledError:
            return
        except NoStoreError:  # before the very first run
            newest, opened = (), ()
        except StoreError as error:
            self.view = replace(self.view, problem=str(error), loaded=True)
            return
        swept = any(run.sweep_id is not None for run in newest)
        self.view = replace(self.view, newest=newest[:2], swept=swept, loaded=True, problem="")
        if opened and here != self._opened and len(self.view.refs) < 2:
            self._opened = here
            self.compare((opened[0].id,))

    def action_pick(self) -> None:
        """Let the user choose which runs to compare."""
        view = self.view
        if view.loaded and not (view.refs or view.newest):
            self.notify("There are no runs yet; 2 starts one.")
        else:
            picker = Picker("runs to compare", self._items, verb="compare", marks=view.refs)
            self.app.push_screen(picker, self._take_runs)

    async def _items(self, text: str) -> Sequence[Item]:
        base = self.view.chosen
        found = await self.workbench.reader.ask(lambda r: list_runs(r, text, base), "pick")
        return [Item(run.id, (run.name or run.id, about(run, changes))) for run, changes in found]

    @work(exclusive=True, group="sweep")
    async def action_sweep(self) -> None:
        """Compare the chosen run's sweep and no other runs; the newest sweep if it has none."""
        key = self.view.chosen.key if self.view.chosen else self.run_on_watch
        try:
            runs = await self.workbench.reader.ask(lambda r: r.runs(limit=MOST_LISTED), "sweep")
        except (StoreError, asyncio.CancelledError):
            return
        own = next((run for run in runs if run.key == key), None)
        sweeps = (run.sweep_id for run in (own, *runs) if run is not None)
        sweep = next((one for one in sweeps if one is not None), None)
        if sweep is None:
            self.notify("No run is part of a sweep; + adds runs one by one.")
            return
        self.compare(tuple(run.id for run in reversed(runs) if run.sweep_id == sweep))

    def read_more(self) -> None:
        """Read what the current page needs beyond the comparison."""
        if self.view.page in ("answers", "grid") and self.view.comparison is not None:
            self._read_page()

    @work(exclusive=True, group="page")
    async def _read_page(self) -> None:
        view, ask = self.view, self.workbench.reader.ask
        runs = view.runs
        try:
            if view.page == "grid":
                await self._read_grid(view)
                return
            prompts = view.prompts
            if prompts is None:
                prompts = await ask(lambda reader: load_prompts(reader, runs), "prompts")
                self.view = replace(self.view, prompts=prompts)
            if prompts:
                prompt = prompts[min(view.prompt, len(prompts) - 1)]
                answers = await ask(
                    lambda reader: load_answers(reader, runs, prompt, view.axis, view.x), "answers"
                )
                self.view = replace(self.view, answers=answers)
        except (StoreError, asyncio.CancelledError) as error:
            if isinstance(error, StoreError):
                self.notify(str(error), severity="error", markup=False)

    async def _read_grid(self, view: View) -> None:
        choices = view.grid_choices()
        if len(choices) < 2 or not view.metric:
            return
        down, across = view.grid_paths or choices[:2]
        found = await self.workbench.reader.ask(
            lambda reader: grid(reader, view.runs, down, across, view.metric, view.stat_word),
            "grid",
        )
        self.view = replace(self.view, grid=found, grid_paths=(down, across))

    # -- requests from panels and other screens ------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Without runs, offer only the keys that add some."""
        if not self.view.refs and action in NEED_RUNS:
            return False
        return super().check_action(action, parameters)

    def find(self, text: str) -> None:
        """Keep the settings and metrics that match the text."""
        self.view = replace(self.view, filter=text, row=0)

    def exports(self) -> Mapping[str, Callable[[], str]]:
        """The comparison as CSV, JSON or Markdown, and the curves as CSV."""
        if self.view.comparison is None:
            return {}
        return {
            "csv": lambda: as_csv(self.view),
            "json": lambda: as_json(self.view),
            "md": lambda: as_markdown(self.view),
            "curves.csv": lambda: curves_csv(self.view),
        }

    @on(RunPicked)
    def pick_run(self, message: RunPicked) -> None:
        self.action_run(message.place - self.view.run)
        if message.twice:
            self.open_run()

    @on(PagePicked)
    def pick_page(self, message: PagePicked) -> None:
        self.turn_to(message.page)

    @on(RowPicked)
    def pick_row(self, message: RowPicked) -> None:
        """Scroll the table under the mouse wheel."""
        self.scroll_rows(message.by)

    # -- crosshair and curves ---------------------------------------------------------------

    def action_common(self) -> None:
        """Move the crosshair to where the shortest run ends."""
        self.view = replace(self.view, at=None)
        self.read_at_crosshair()

    def action_bands(self) -> None:
        """Toggle between seeds as mean with interval and one curve per run."""
        found = self.view.comparison
        if found is None or not found.seeds:
            self.notify("No two of these runs differ only in the seed.")
            return
        self.view = replace(self.view, bands=not self.view.bands)
        self.draw()

    # -- runs -------------------------------------------------------------------------------

    def action_run(self, by: int) -> None:
        """Choose another run."""
        last = max(0, len(self.view.runs) - 1)
        self.view = replace(self.view, run=max(0, min(last, self.view.run + by)))

    def action_baseline(self) -> None:
        """Make the chosen run the baseline."""
        chosen = self.view.chosen
        if chosen is not None:
            self.view = replace(self.view, baseline=chosen.id)
            self.reload()

    def action_hide(self) -> None:
        """Hide or show the chosen run's curves; one run always stays visible."""
        view, chosen = self.view, self.view.chosen
        if chosen is None:
            return
        hidden = view.hidden ^ {chosen.id}
        if len(hidden & {run.id for run in view.runs}) < len(view.runs):
            self.view = replace(view, hidden=hidden)
        else:
            self.notify("At least one run must be visible; x removes this one.")

    def action_drop(self) -> None:
        """Remove the chosen run from the comparison."""
        chosen = self.view.chosen
        if chosen is not None:
            self.compare(tuple(ref for ref in self.view.refs if ref != chosen.id))

    def _take_runs(self, picked: Picked | None) -> None:
        if picked is not None:
            self.compare(picked.marks)

    # -- pages ------------------------------------------------------------------------------

    def pages(self) -> tuple[Page, ...]:
        """The available pages; settings only if they have no panel of their own."""
        beside = self.query_one(SettingsPanel).display
        return tuple(page for page in PAGES if page != "settings" or not beside)

    def action_page(self, by: int) -> None:
        """Go to another page; on a small terminal the curves are one of them."""
        pages = self.pages()
        short = self.has_class("-short")
        on_curves = short and not self.has_class("-page")
        turns: tuple[Page | None, ...] = (None, *PAGES) if short else pages
        now = None if on_curves else self.view.page
        place = turns.index(now) if now in turns else 0
        target = turns[(place + by) % len(turns)]
        if target is None:
            self.set_class(False, "-page")
            self.query_one(CurvesPanel).focus()
            self.call_after_refresh(self.draw)
        else:
            self.turn_to(target)

    def turn_to(self, page: Page) -> None:
        """Show a page."""
        self.set_class(True, "-page")
        self.view = replace(self.view, page=page, row=0, scroll=0)
        if self.has_class("-short"):
            self.query_one(PagePanel).focus()
        self.read_more()

    def action_stat(self) -> None:
        """Switch between last values, best ones and those at the crosshair."""
        stat = STATS[(STATS.index(self.view.stat) + 1) % len(STATS)]
        self.view = replace(self.view, stat=stat)
        self.read_more()

    def action_reach(self) -> None:
        """Ask what counts as reached."""
        hint = (
            "A held-out accuracy such as .8, or METRIC=VALUE. Empty: the baseline's last accuracy."
        )
        self.app.push_screen(Ask("threshold", hint, self.view.reach), self._reach)

    def _reach(self, text: str | None) -> None:
        if text is None:
            return
        try:
            threshold(text)
        except CompareError as error:
            self.notify(str(error), severity="warning", markup=False)
            return
        self.view = replace(self.view, reach=text)
        self.turn_to("ranking")
        self.reload()

    def action_settings(self) -> None:
        """Toggle between all settings and those that differ; where none show, show them first."""
        beside = self.query_one(SettingsPanel).display
        if beside or (self.query_one(PagePanel).display and self.view.page == "settings"):
            self.view = replace(self.view, everything=not self.view.everything, row=0)
        else:
            self.turn_to("settings")

    def action_prompt(self, by: int) -> None:
        """Show answers to another prompt; if the page is hidden, show it first."""
        count = len(self.view.prompts or ())
        if self.view.page == "answers" and count:
            place = (self.view.prompt + by) % count
            self.view = replace(self.view, prompt=place, scroll=0)
            self.read_more()
        else:
            self.turn_to("answers")

    def action_grid(self, which: int) -> None:
        """Choose another setting for rows or columns; if the grid is hidden, show it first."""
        view, choices = self.view, self.view.grid_choices()
        if view.page != "grid":
            self.turn_to("grid")
            return
        if len(choices) < 3 or view.grid_paths is None:
            self.notify("No other setting differs between these runs.")
            return
        paths = list(view.grid_paths)
        place = choices.index(paths[which]) if paths[which] in choices else 0
        paths[which] = next(
            path for path in (*choices[place + 1 :], *choices[: place + 1])
            if path != paths[1 - which]
        )  # fmt: skip
        self.view = replace(view, grid_paths=(paths[0], paths[1]), grid=None)
        self.read_more()

    # -- what depends on the focus ----------------------------------------------------------

    def action_down(self, by: int) -> None:
        """Move to the next chart, run or row, depending on the focused panel."""
        focused = self.focused
        if isinstance(focused, CurvesPanel):
            super().action_down(by)
            self.read_more()
        elif isinstance(focused, RunsPanel):
            self.action_run(by)
        else:
            self.scroll_rows(by)

    def scroll_rows(self, by: int) -> None:
        """Scroll through the rows of the tables."""
        view = self.view
        if view.page == "answers" and not isinstance(self.focused, SettingsPanel):
            self.view = replace(view, scroll=max(0, min(view.scroll + by, 5000)))
            return
        count = len(view.rows)
        if view.page == "settings" or isinstance(self.focused, SettingsPanel):
            count = len(view.settings())
        self.view = replace(view, row=max(0, min(count - 1, view.row + by)))

    def action_enter(self) -> None:
        """Open the item under the cursor."""
        view, focused = self.view, self.focused
        if not view.refs:
            if len(view.newest) > 1:
                newest = view.newest[:2]
                self.compare((newest[1].id, newest[0].id))
            else:
                self.action_pick()
        elif isinstance(focused, PagePanel) and view.page == "answers":
            self.open_answers()
        elif isinstance(focused, PagePanel) and view.page == "metrics":
            self.draw_row()
        elif isinstance(focused, CurvesPanel):
            self.post_message(msg.ExplainRequested(focused.topic()))
        else:
            self.open_run()

    def open_run(self) -> None:
        """Watch the chosen run."""
        if self.view.chosen is not None:
            self.post_message(msg.RunOpened(self.view.chosen.id))

    def open_answers(self) -> None:
        """Show the chosen run's answers token by token."""
        view = self.view
        group = None
        if view.answers is not None and view.chosen is not None:
            group = view.answers.groups.get(view.chosen.id)
        if group is not None:
            self.post_message(
                msg.RolloutOpened(
                    run=group.run, step=group.step, origin=group.origin, group=group.index, answer=0
                )
            )

    def draw_row(self) -> None:
        """Draw the row's metric, or remove it from the charts."""
        view = self.view
        if not view.rows:
            return
        key = view.rows[min(view.row, len(view.rows) - 1)].key
        if key in view.metrics and len(view.metrics) > 1:
            metrics = tuple(one for one in view.metrics if one != key)
        else:
            metrics = tuple(dict.fromkeys((*view.metrics, key)))
        chart = metrics.index(key) if key in metrics else 0
        self.view = replace(view, metrics=metrics, chart=chart)
        self.draw()


def about(run: RunSummary, changes: Sequence[str] = ()) -> str:
    """Describe a run in one line of the picker, first how its settings differ."""
    sweep = f"sweep {run.sweep}" if run.sweep else ""
    parts = [run.status, f"step {run.step}", f"seed {run.seed}", sweep, run.recipe, run.task,
             *run.tags]  # fmt: skip
    best = run.metrics.get("reward")
    if best is not None and best.best is not None:
        parts.insert(2, f"best reward {short(best.best)}")
    return " · ".join(part for part in (*changes, *parts) if part)
