"""The Runs screen: every stored run, to find, mark, open and control."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from textual import events, on, work
from textual.app import ComposeResult, SuspendNotSupported
from textual.containers import Horizontal
from textual.message import Message
from textual.reactive import reactive

from grpo_tui.app.feed.feed import Session
from grpo_tui.app.feed.outcomes import outcomes_with_curves
from grpo_tui.app.feed.snapshot import Request
from grpo_tui.app.feed.stored import request
from grpo_tui.app.latest import Latest
from grpo_tui.app.text.words import count_of
from grpo_tui.app.tui import messages as msg
from grpo_tui.app.tui.dialogs.help.subject import HelpSubject
from grpo_tui.app.tui.exporting import Export, page_export, table_export
from grpo_tui.app.tui.keys import bindings
from grpo_tui.app.tui.screens.run_keys import (
    CONTINUE_KEY,
    CONTROLS,
    ControlledRun,
    ControlScreen,
)
from grpo_tui.app.tui.screens.runs.render import (
    COLUMNS,
    card_lines,
    column_at,
    fitting,
    group_preview,
    preview_lines,
    table_lines,
    table_note,
)
from grpo_tui.app.tui.screens.runs.state import (
    GROUPS,
    RunsView,
    TableRow,
    load_list,
    load_preview,
    read_table,
)
from grpo_tui.app.tui.store import writes
from grpo_tui.app.tui.store.reader import reporting
from grpo_tui.app.tui.widgets.find_bar import FindBar
from grpo_tui.app.tui.widgets.panel import Line, Panel, ViewPanel, paragraph, visible
from grpo_tui.experiments.errors import NoStoreError, StoreError
from grpo_tui.experiments.values import RunSummary

if TYPE_CHECKING:
    from grpo_engine.config.settings import RunConfig
    from grpo_tui.app.tui.dialogs.picker import PickerResult
    from grpo_tui.experiments.reader import StoreReader
    from grpo_tui.experiments.store import ExperimentStore

Write = Callable[["ExperimentStore"], str]

POLL_S = 0.5
PREVIEW_DELAY_S = 0.12
NEED_RUNS = frozenset(
    {"mark", "mark_sweep", "compare", "clone", "resume", "remove", "find", "zoom"}
)
OFFERS = {"open": "starter run"}


class RunsViewPanel(ViewPanel):
    """A panel that draws the screen's view."""

    view: reactive[RunsView] = reactive(RunsView)


class RunsTable(RunsViewPanel):
    """One line per run; only visible lines are drawn."""

    navigable = True
    unseen = frozenset(("preview",))

    @dataclass
    class TitleClicked(Message):
        """The table is to be sorted by a column."""

        key: str

    now: reactive[int] = reactive(0)  # in seconds, for the ages

    def copy_text(self) -> str:
        """Return the run's id and name."""
        run = self.view.selected
        return f"{run.id} {run.name}" if run else ""

    @property
    def _above(self) -> int:
        """Lines above the rows."""
        return 1 + bool(self.view.starting)

    def visible_rows(self) -> tuple[TableRow, ...]:
        return self.view.rows[self._top : self._top + max(1, self.inner.height - self._above)]

    def paint(self, width: int, height: int) -> list[Line]:
        """Titles, then the rows around the cursor; a hint card if there are no runs."""
        view = self.view
        self.note = table_note(view)
        if view.problem:
            return paragraph(view.problem, width, height, "bad")
        if view.is_empty and not view.starting:
            return card_lines(view, width, height)
        if not view.loaded:
            return [[("reading the store", "label")]]
        space = height - self._above
        self._top = visible([1] * len(view.rows), space, view.cursor, top=self._top).start
        view = replace(view, now=self.now or time.time())
        return table_lines(view, self._top, width, height)

    def on_click(self, event: events.Click) -> None:
        """Sort by the clicked title, or go to the clicked row; a double click opens it."""
        x, y = self.inside(event.offset)
        column = column_at(fitting(self.inner.width, self.view), x)
        if y == 0 and column is not None and column.key:
            self.post_message(self.TitleClicked(column.key))
        elif self._above <= y < self._above + len(self.view.rows) - self._top:
            self.action_move(y - self._above + self._top - self.view.cursor, 0)
            if event.chain > 1:
                self.post_message(self.Opened())


class PreviewPanel(RunsViewPanel):
    """The run under the cursor at a glance."""

    unseen = frozenset(("marked", "sort", "columns", "axes", "queued", "more", "now"))

    def __init__(self, title: str, **kwargs: Any) -> None:
        super().__init__(title, **kwargs)
        self.cache = Latest()  # the list is read again far more often than the preview changes

    def paint(self, width: int, height: int) -> list[Line]:
        """The run's preview, or a hint if there is no run."""
        view = self.view
        run, preview = view.selected, view.preview
        self.title = run.title if run else "preview"
        if members := view.members:
            self.title = count_of(len(members), "run")
            return group_preview(view, members, width, height)
        if run is None:
            hint = "The health, curves and settings of a run appear here."
            if view.is_empty:
                hint = "⏎ starts a run of two minutes; its health, curves and settings appear here."
            return paragraph(hint, width, height, "label")
        if preview is None or preview.detail.summary.key != run.key:
            return [[("reading", "label")]]
        look = preview, run, width, height, run.id == view.here
        return self.cache.latest("preview", look, lambda: preview_lines(*look))


class RunsScreen(ControlScreen):
    """All runs of the store."""

    mode = "runs"
    find_hint = "find runs: words of name, tags or note, or reward>.5 status:running"
    CSS_PATH = "runs.tcss"
    BINDINGS = bindings("runs")

    view: reactive[RunsView] = reactive(RunsView, repaint=False)

    def __init__(self) -> None:
        super().__init__()
        # what brings runs back, and the first of them
        self._undo: list[tuple[Write, str]] = []
        # how far the runs were whose outcomes were read
        self._read_up_to: dict[int, tuple[int, str]] = {}
        self._awaited = ""  # the run that the cursor goes to once it is listed

    def body(self) -> ComposeResult:
        with Horizontal(id="panes"):
            yield RunsTable("runs", id="table")
            yield PreviewPanel("preview", id="preview")

    def on_mount(self) -> None:
        """Apply the remembered columns, read the runs, and poll for changes while active."""
        columns = self.workbench.preferences.texts("runs.columns")
        if columns is not None:
            self.update(columns=tuple(columns))
        self.query_one(RunsTable).focus()
        self.refresh_runs()
        self.set_interval(POLL_S, self._poll)

    def on_screen_resume(self) -> None:
        """Show at once what changed, alerts that were muted included."""
        self._read_up_to.clear()
        if self.view.loaded:
            self.refresh_runs()

    @property
    def ready(self) -> bool:
        """Whether the table has been read, and the cursor is on the open run."""
        return self.view.loaded and self.has_followed_run

    def run_opened(self, run: str) -> None:
        """Move to the run that was opened elsewhere."""
        self._awaited = run
        self._show(self.view)

    def _show(self, view: RunsView, run: str = "") -> None:
        """Show the list with the cursor on the run that is awaited if it is there, or on this."""
        self.view = view.on_run(self._awaited, run)
        if self.view.selected is not None and self.view.selected.id == self._awaited:
            self._awaited = ""

    def tick(self, now: float) -> None:
        """Update the ages, and show the keys that the selected run can use."""
        self.query_one(RunsTable).now = int(now)
        bench = self.workbench
        starting = bench.starting.feed.head.name if bench.starting is not None else ""
        here = bench.bridge.run if bench.bridge.running else ""
        if (starting, here) != (self.view.starting, self.view.here):
            self.update(starting=starting, here=here)
        run, bar = self.controlled_run(), self.key_bar
        bar.renamed = CONTINUE_KEY if run is not None and run.pausing else {}
        bar.hidden = self.unused_controls(active=run is not None and run.active)
        if self.view.is_empty:
            bar.renamed, bar.hidden = OFFERS, CONTROLS | NEED_RUNS

    # -- reading ----------------------------------------------------------------------------

    @work(exclusive=True, group="poll")
    async def _poll(self) -> None:
        is_read = all(w.is_finished for w in self.workers if w.group == "runs" and w.node is self)
        if not (self.is_current and is_read):  # a read that is never completed shows nothing
            return
        changed = False
        with suppress(StoreError, asyncio.CancelledError):
            changed = await self.read("changed", lambda reader: reader.changed())
        if changed or self.view.is_empty or any(run.active for run in self.view.runs):
            self.refresh_runs()

    @work(exclusive=True, group="runs")
    async def refresh_runs(self) -> None:
        """Read the table; the cursor stays on its run."""
        try:
            fields = await self.read("runs", load_list, self.view)
        except asyncio.CancelledError:
            return
        except NoStoreError:  # before the very first run
            fields = {"runs": ()}
        except StoreError as error:
            self.update(problem=str(error), loaded=True)
            return
        selected = self.view.selected  # the cursor may have moved while the table was read
        is_first = not self.view.loaded
        view = replace(self.view, loaded=True, problem="", **fields)
        live = next((run for run in view.runs if run.active), None) if is_first else None
        cursor = selected or live
        self._show(view, cursor.id if cursor is not None else "")
        self.workbench.has_deleted = bool(view.deleted)
        if is_first:
            self.refresh_runs()
            return
        await self._read_visible()

    async def _read_visible(self) -> None:
        """Read the outcomes of the visible runs and the preview of the selected one."""
        if not (tables := self.query(RunsTable)):
            return  # the screen was closed while the store was read
        runs = [row.run for row in tables.first().visible_rows() if row.run is not None]
        reached = {run.key: (run.step, run.status) for run in runs}
        unread = [run for run in runs if self._read_up_to.get(run.key) != reached[run.key]]
        selected = self.view.selected
        with suppress(StoreError, asyncio.CancelledError):
            if unread:
                outcomes = await self.read("outcomes", outcomes_with_curves, unread)
                self.update(outcomes={**self.view.outcomes, **outcomes})
                self._read_up_to |= {run.key: reached[run.key] for run in unread}
            if selected is not None:
                preview = await self.read("preview", load_preview, selected)
                self.update(preview=preview)

    def watch_view(self, _old: RunsView, new: RunsView) -> None:
        """Pass the view to every panel, and what is selected to the other screens."""
        if self.is_mounted:
            bench = self.workbench
            bench.marked = new.marked_ids
            bench.selected = new.selected.id if new.selected else ""
            for panel in self.query(RunsViewPanel):
                panel.show_view(new)

    # -- moves ------------------------------------------------------------------------------

    @on(Panel.Moved, "#table")
    def move(self, event: Panel.Moved) -> None:
        """Move the cursor; the preview follows once it stops."""
        self.view = self.view.moved(event.rows)
        self._read_later()

    @work(exclusive=True, group="rest")
    async def _read_later(self) -> None:
        await asyncio.sleep(PREVIEW_DELAY_S)
        await self._read_visible()

    def action_open(self) -> None:
        """Watch the run, fold the group, or launch the starter preset if there are no runs."""
        view = self.view
        if view.is_empty:
            from grpo_engine.presets import preset

            self.post_message(msg.LaunchRequested(preset("starter").config))
        elif view.selected is not None:
            self.post_message(msg.RunOpened(view.selected.id, view.selected.title))
        else:
            self.view = view.toggle_fold()

    def action_mark(self) -> None:
        """Mark the run or the whole group."""
        self.view = self.view.mark()

    def action_mark_sweep(self) -> None:
        """Mark the run's sweep in place of what was marked, or unmark it."""
        run = self.view.selected
        if run is not None and run.sweep_id is None:
            self.notify(f"{run.title} is part of no sweep; space marks runs.")
        self.view = self.view.mark_sweep()

    # -- other screens ----------------------------------------------------------------------

    def action_clone(self) -> None:
        """Open the form with this run's settings."""
        if self.view.selected is not None:
            self.post_message(msg.NewRunRequested(clone=self.view.selected.id))

    @work(exclusive=True, group="chat")
    async def action_chat(self) -> None:
        """Open a dialogue with the run's model and with the one it began as."""
        # these load pydantic, which takes as long as the first frame
        from grpo_tui.app.chat.client import pair_of
        from grpo_tui.app.tui.dialogs.chat import ChatScreen
        from grpo_tui.app.tui.dialogs.trust import trusting

        run = self.view.selected
        if run is None:
            return
        with reporting(self):
            pair = await trusting(self, "chat", pair_of, run.id, None)
            if pair is not None:
                self.app.push_screen(ChatScreen(pair))

    def action_resume(self) -> None:
        """Resume the run from its last checkpoint."""
        run = self.view.selected
        if run is None:
            return
        name = run.title
        if run.status in ("running", "paused"):
            self.notify(f"{name} has not ended yet; ⏎ opens it.")
        elif run.status == "completed":
            self.notify(f"{name} is complete; `grpo-tui resume {name} --steps N` continues it.")
        else:
            self._resume(run)

    @work(exclusive=True, group="resume")
    async def _resume(self, run: RunSummary) -> None:
        """Resume after a yes to what the run names, if it began elsewhere."""
        from grpo_engine import consent
        from grpo_tui.app.tui.dialogs.trust import trusting

        def settings(reader: "StoreReader") -> "RunConfig":
            detail = reader.resumable(run.id)
            return consent.build(detail.config, f"run {detail.summary.name}")

        with reporting(self):
            if not self.refused() and await trusting(self, "", settings) is not None:
                self.post_message(msg.ResumeRequested(run.id, run.title))

    def help_subject(self, topic: str) -> HelpSubject:
        """The run on Watch, with the health of the one under the cursor."""
        run = self.view.selected
        outcome = self.view.outcomes.get(run.key) if run is not None else None
        health = (run.title, outcome.health) if run is not None and outcome is not None else None
        return replace(super().help_subject(topic), health=health)

    def action_compare(self) -> None:
        """Compare the marked runs side by side."""
        if len(self.view.marked_ids) < 2:
            self.notify("Mark two runs or more with space, then press d.")
        else:
            self.post_message(msg.CompareRequested(self.view.marked_ids))

    def exports(self) -> Iterator[Export]:
        """The table, and the marked runs or the one under the cursor as a page."""
        view, store = self.view, self.workbench.store
        listed = [row.run for row in view.rows if row.run is not None]
        if listed:
            description = f"{count_of(len(listed), 'run')} as CSV, in full precision"
            rows = partial(read_table, store, listed)
            yield table_export("table", description, "runs", rows)
        if runs := view.selection:
            name = f"{len(runs)} runs compared" if len(runs) > 1 else runs[0].title
            yield page_export(store, runs, f"{name}, as one HTML file for browsers")

    def action_demo(self) -> None:
        """Play the bundled recording in the terminal, then return."""
        from grpo_tui.app.jobs.detach import spawn

        try:
            with self.app.suspend():
                spawn("demo", streams=(0, 1, 2), scope="").wait()
        except SuspendNotSupported:
            self.warn("Not here: run `grpo-tui demo` in a terminal.")

    def action_queue(self) -> None:
        """Show the queue."""
        from grpo_tui.app.tui.screens.runs.dialogs import QueueScreen

        self.app.push_screen(QueueScreen())

    # -- controlling the run under the cursor, wherever it is training ----------------------

    def _session(self, run: RunSummary) -> Session | None:
        """The session of a run that trains in this process or is on screen."""
        sessions = (self.workbench.live, self.workbench.session)
        return next((session for session in sessions if session and session.run == run.key), None)

    def controlled_run(self) -> ControlledRun | None:
        """The run under the cursor."""
        run = self.view.selected
        if run is None:
            return None
        session = self._session(run)
        if session is not None and session.feed.mark == "":
            return ControlledRun.of(session.state.snapshot())
        return ControlledRun(run.title, run.active, run.status == "paused")

    def send(self, verb: Request) -> None:
        """Send a request; the answer names the run."""
        run, controlled = self.view.selected, self.controlled_run()
        if run is None or controlled is None:
            self.warn("No run is under the cursor.")
        elif not controlled.active:
            self.warn(f"{controlled.name} has ended.")
        elif not self.refused():
            request = verb.replace("_", " ")
            self.notify(f"Asked {controlled.name} to {request}.")
            session = self._session(run)
            if session is not None and session.feed.may_control:
                session.ask(verb)
                self.workbench.frame_now()
            else:
                self._send_request(run, verb)

    @work(group="control")
    async def _send_request(self, run: RunSummary, verb: str) -> None:
        """Send a request through the store to the training process, and say why it failed."""
        with reporting(self):
            problem = await asyncio.to_thread(request, self.workbench.store, run.key, verb)
            if problem:
                self.warn(f"{run.title}: {problem}")

    # -- changes in the store: archive, delete, name, tags, note -----------------------------

    @work(group="write")
    async def _write(self, call: Write) -> None:
        """Change the store on the writer's thread, and say what was done."""
        if self.refused():
            return
        with reporting(self):
            self.notify(await self.workbench.write(call))
            self.refresh_runs()

    def action_remove(self) -> None:
        """Ask whether to archive or to delete the marked runs."""
        from grpo_tui.app.tui.screens.runs.dialogs import remove_dialog

        runs = self.view.selection
        active = next((run for run in runs if run.active), None)
        if active is not None:
            self.notify(f"{active.title} has not ended yet; stop it first (S).")
        elif runs and not self.refused():
            self.app.push_screen(remove_dialog(runs), partial(self._remove, runs))

    def _remove(self, runs: tuple[RunSummary, ...], choice: str | None) -> None:
        restore = partial(writes.set_archived, runs=runs, archived=False)
        if choice:
            self.update(marked=frozenset())
        if choice == "restore":
            self._write(restore)
        elif choice == "archive":
            self._undo.append((restore, runs[0].id))
            self._write(partial(writes.set_archived, runs=runs, archived=True))
        elif choice == "delete":
            self._undo.append((writes.restore, runs[0].id))
            self.workbench.close_runs({run.key for run in runs})
            self._write(partial(writes.delete, runs=runs))

    def action_undo(self) -> None:
        """Bring back what was archived or deleted last, also by an earlier process."""
        undo, self._awaited = self._undo.pop() if self._undo else (writes.restore, "")
        self._write(undo)

    def action_describe(self) -> None:
        """Ask for name, tags and note of the selected run, or for tags of the marked ones."""
        from grpo_tui.app.tui.screens.runs.dialogs import describe_dialog

        runs = self.view.selection

        def describe(texts: list[str] | None) -> None:
            if texts:
                self._write(partial(writes.describe, runs=runs, texts=texts))

        if runs:
            self.app.push_screen(describe_dialog(runs), describe)

    # -- the list ---------------------------------------------------------------------------

    def action_escape(self) -> None:
        """Clear the marks once no search is open."""
        if self.view.marked and not self.query_one(FindBar).display:
            self.update(marked=frozenset())
        else:
            super().action_escape()

    def find(self, text: str) -> None:
        """Filter by words of name, tags and note, or an expression in the filter language."""
        self._relist(filter=text, problem="")

    def _relist(self, **changes: Any) -> None:
        self.update(**changes)
        self.refresh_runs()

    def switched(self) -> None:
        """List archived runs as well, or no longer."""
        self.refresh_runs()

    @work(exclusive=True, group="dialog")
    async def action_group(self) -> None:
        """Choose what to group by: a property of runs, or any setting or metric."""
        result = await self._pick("group by", groups=GROUPS, cursor=self.view.group)
        if result is not None:
            self._relist(group=result.value, folded=frozenset())

    @work(exclusive=True, group="dialog")
    async def action_columns(self) -> None:
        """Choose columns from all settings and metrics, and remember them."""
        marks = self.view.columns
        result = await self._pick("columns", marks, verb="show", marks=marks, optional=True)
        if result is not None:
            self.workbench.preferences.remember(**{"runs.columns": list(result.marks)})
            self._relist(columns=result.marks)

    async def _pick(
        self, title: str, columns: Sequence[str] = (), groups: Sequence[str] = (), **how: Any
    ) -> "PickerResult | None":
        """Let the user pick from all settings and metrics."""
        # dialogs are loaded after the first frame
        from grpo_tui.app.tui.dialogs.picker import Picker
        from grpo_tui.app.tui.screens.runs.dialogs import column_items

        try:
            items = await self.read("columns", column_items, columns, groups)
            picker = Picker(title, items, **how)
            return await self.app.push_screen_wait(picker)
        except (StoreError, asyncio.CancelledError):  # there is no store yet
            return None

    def action_sort(self) -> None:
        """Sort by the next visible column; before the first layout, by the next of all columns."""
        columns = fitting(self.query_one(RunsTable).inner.width, self.view) or COLUMNS
        keys = [column.key for column in columns if column.key]
        current = self.view.sort.lstrip("-")
        index = keys.index(current) if current in keys else -1
        self._relist(sort="-" + keys[(index + 1) % len(keys)])

    def on_runs_table_title_clicked(self, message: RunsTable.TitleClicked) -> None:
        self.action_sort_by(message.key)

    def action_sort_by(self, key: str = "") -> None:
        """Sort by a column, or the other way round if that is what the order is by."""
        key = key or self.view.sort.lstrip("-")
        self._relist(sort=key if self.view.sort == f"-{key}" else f"-{key}")
