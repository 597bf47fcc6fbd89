"""The Runs screen: every stored run, to find, mark, open and control."""

import asyncio
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from textual import on, work
from textual.app import ComposeResult, SuspendNotSupported
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.reactive import reactive

from grpo_engine.errors import EngineError
from grpo_tui.app.feed.session import Session
from grpo_tui.app.feed.snapshot import Asked, Snapshot
from grpo_tui.app.tui import messages as msg
from grpo_tui.app.tui.dialogs.ask import Ask
from grpo_tui.app.tui.screens.run_keys import (
    CONTROL_BINDINGS,
    CONTROLS,
    HELD,
    ControlledRun,
    ControlScreen,
)
from grpo_tui.app.tui.screens.runs.columns import COLUMNS, METRICS
from grpo_tui.app.tui.screens.runs.load import load_preview, load_sparks
from grpo_tui.app.tui.screens.runs.panels import PreviewPanel, RowPicked, RunsTable, ViewPanel
from grpo_tui.app.tui.screens.runs.texts import as_csv, as_json, as_markdown
from grpo_tui.app.tui.screens.runs.view import GROUPS, View
from grpo_tui.app.tui.store import writes
from grpo_tui.app.tui.widgets.find_bar import FindBar
from grpo_tui.experiments.errors import NoStoreError, StoreError
from grpo_tui.experiments.values import RunSummary

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader

MOST_RUNS = 5000  # in the table; a search finds the others
POLL_S = 0.5
PREVIEW_DELAY_S = 0.12
DEMO = frozenset({"demo"})
NEED_RUNS = frozenset({"mark", "mark_sweep", "compare", "clone", "resume", "find", "zoom"})
OFFERS: Final = {"open": "starter run", "demo": "recorded run", "new": "own run"}
WORDS: Final = {
    "pause": "pause", "continue": "continue", "checkpoint": "save a checkpoint",
    "stop_after_step": "stop after this step", "stop_now": "stop now",
}  # fmt: skip


class RunsScreen(ControlScreen):
    """All runs of the store."""

    mode = "runs"
    find_hint = "words of name, tags or note, or reward>.5 status:running"
    CSS_PATH = "runs.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "open", id="runs.open", tooltip="Watch the run under the cursor"),
        Binding("down,j", "move(1)", "down", id="runs.down", show=False, tooltip="The next run"),
        Binding("up,k", "move(-1)", "up", id="runs.up", show=False, tooltip="The run above"),
        Binding("pagedown", "move(20)", "page down", id="runs.page_down", show=False,
                tooltip="Twenty runs down"),
        Binding("pageup", "move(-20)", "page up", id="runs.page_up", show=False,
                tooltip="Twenty runs up"),
        Binding("home", "move(-1000000)", "first", id="runs.first", show=False,
                tooltip="The first run"),
        Binding("end", "move(1000000)", "last", id="runs.last", show=False,
                tooltip="The last run"),
        Binding("space", "mark", "mark", id="runs.mark", tooltip="Mark for the next action"),
        Binding("asterisk", "mark_sweep", "sweep", id="runs.sweep", key_display="*",
                tooltip="Mark this run's sweep and no other runs, or unmark it; space adds"),
        Binding("d", "compare", "compare", id="runs.compare",
                tooltip="The marked runs side by side"),
        Binding("n", "new", "new", id="runs.new", tooltip="Settings of a new run"),
        Binding("c", "clone", "clone", id="runs.clone", tooltip="A new run with these settings"),
        Binding("a", "chat", "ask", id="runs.chat", show=False,
                tooltip="Ask the trained model and the one it began as the same thing"),
        Binding("r", "resume", "resume", id="runs.resume",
                tooltip="Resume from the last checkpoint"),
        *CONTROL_BINDINGS,
        Binding("b", "baseline", "baseline", id="runs.baseline", show=False,
                tooltip="Pin this run as the baseline"),
        Binding("t", "tags", "tags", id="runs.tags", show=False, tooltip="Add and remove tags"),
        Binding("N", "rename", "name", id="runs.rename", show=False, tooltip="Rename"),
        Binding("i", "note", "note", id="runs.note", show=False, tooltip="Write a note"),
        Binding("g", "group", "group", id="runs.group", show=False,
                tooltip="Group by recipe, task, model, sweep, seed or status"),
        Binding("G", "group_by", "group by…", id="runs.group_by", show=False,
                tooltip="Group by any setting or metric"),
        Binding("C", "columns", "columns…", id="runs.columns", show=False,
                tooltip="Add columns of any setting or metric"),
        Binding("o", "order", "order", id="runs.order", show=False,
                tooltip="Sort by the next column"),
        Binding("O", "turn_round", "reverse", id="runs.turn_round", show=False,
                tooltip="Reverse the order"),
        Binding("R", "running", "running only", id="runs.running", show=False,
                tooltip="Only active runs"),
        Binding("A", "archived", "archived too", id="runs.archived", show=False,
                tooltip="Show archived runs as well"),
        Binding("x", "archive", "archive…", id="runs.archive", show=False,
                tooltip="Hide runs from the list; u brings them back"),
        Binding("u", "undo", "undo", id="runs.undo", show=False,
                tooltip="Bring back what was archived last"),
        Binding("Q", "queue", "queue", id="runs.queue", show=False,
                tooltip="The queue of waiting runs"),
        Binding("p", "demo", "demo", id="runs.demo", tooltip="Play the bundled recorded run"),
    ]  # fmt: skip

    view: reactive[View] = reactive(View, repaint=False)

    def __init__(self) -> None:
        super().__init__()
        self._archived_last: tuple[RunSummary, ...] = ()
        self._opened = 0  # the open run that the cursor was moved to
        self._awaits_run = False  # whether the open run was not known yet when the cursor moved

    def body(self) -> ComposeResult:
        with Horizontal(id="panes"):
            yield RunsTable(id="table")
            yield PreviewPanel(id="preview")

    def on_mount(self) -> None:
        """Apply the remembered columns, read the runs, and poll for changes while active."""
        known = self.workbench.preferences.get("runs.columns", [])
        columns = tuple(str(name) for name in known) if isinstance(known, list) else ()
        self.view = replace(self.view, columns=columns)
        self.query_one(RunsTable).focus()
        self.refresh_runs()
        self.set_interval(POLL_S, self._poll)

    def on_screen_resume(self) -> None:
        """Move to the run that was opened elsewhere, and show at once what changed."""
        self._go_to_open_run()
        if self.view.loaded:
            self.refresh_runs()

    @property
    def ready(self) -> bool:
        """Whether the table has been read, and the cursor is on the open run."""
        return self.view.loaded and not self._awaits_run

    def _go_to_open_run(self) -> None:
        self._awaits_run = self.run_is_opening
        if self.run_on_watch != self._opened:
            view = self.view.on_run(self.run_on_watch)
            if view.chosen is not None and view.chosen.key == self.run_on_watch:
                self.view, self._opened = view, self.run_on_watch

    def show(self, snapshot: Snapshot) -> None:
        """Note that this process's run has changed; the next poll reads it."""

    def tick(self, now: float) -> None:
        """Animate the marks of live runs, and show the keys that the selected run can use."""
        if self._awaits_run and not self.run_is_opening:
            self._go_to_open_run()
        self.query_one(RunsTable).now = now
        run, bar = self.controlled_run(), self.key_bar
        bar.renamed = HELD if run is not None and run.held else {}
        bar.hidden = DEMO if run is not None and run.active else CONTROLS | DEMO
        if self.view.empty:
            bar.renamed, bar.hidden = OFFERS, CONTROLS | NEED_RUNS

    # -- reading ----------------------------------------------------------------------------

    @work(exclusive=True, group="poll")
    async def _poll(self) -> None:
        if not self.is_current:
            return
        try:
            changed = await self.workbench.reader.ask(lambda reader: reader.changed(), "changed")
        except (StoreError, asyncio.CancelledError):
            return
        if changed or self.view.empty or any(run.active for run in self.view.runs):
            self.refresh_runs()

    def refresh_runs(self) -> None:
        """Reload the table."""
        self._read()

    @work(exclusive=True, group="runs")
    async def _read(self) -> None:
        view = self.view
        ask = self.workbench.reader.ask
        extra = () if view.group in GROUPS else (view.group,)

        def read(reader: "StoreReader") -> tuple[tuple[RunSummary, ...], int]:
            runs = reader.runs(
                view.filter, sort=view.sort, columns=(*view.columns, *extra),
                archived=view.archived, metrics=METRICS, limit=MOST_RUNS + 1,
            )  # fmt: skip
            return runs, sum(item.state == "queued" for item in reader.queue())

        try:
            runs, waiting = await ask(read, "runs")
        except asyncio.CancelledError:
            return
        except NoStoreError:  # before the very first run
            runs, waiting = (), 0
        except StoreError as error:
            self.view = replace(self.view, problem=str(error), loaded=True)
            return
        more = len(runs) > MOST_RUNS
        self.view = replace(self.view.with_runs(runs[:MOST_RUNS]), waiting=waiting, more=more)
        self._go_to_open_run()
        await self._read_sight()

    async def _read_sight(self) -> None:
        if not (tables := self.query(RunsTable)):
            return  # the screen was closed while the store was read
        rows = tables.first().in_sight()
        runs = [row.run for row in rows if row.run is not None]
        wanted = [run for run in runs if run.active or run.key not in self.view.sparks]
        chosen = self.view.chosen
        try:
            if wanted:
                found = await self.workbench.reader.ask(
                    lambda reader: load_sparks(reader, wanted), "sparks"
                )
                self.view = replace(self.view, sparks={**self.view.sparks, **found})
            if chosen is not None:
                run: RunSummary = chosen
                preview = await self.workbench.reader.ask(
                    lambda reader: load_preview(reader, run), "preview"
                )
                self.view = replace(self.view, preview=preview)
        except (StoreError, asyncio.CancelledError):
            return

    def watch_view(self, _old: View, new: View) -> None:
        """Pass the view to every panel, and the marked runs to Compare."""
        if self.is_mounted:
            self.workbench.marked = self._side_by_side() if new.marks else msg.CompareRequested(())
            for panel in self.query(ViewPanel):
                panel.view = new

    # -- moves ------------------------------------------------------------------------------

    def action_move(self, by: int) -> None:
        """Move the cursor; the preview follows once it stops."""
        self.view = self.view.moved(by)
        self._rest()

    @work(exclusive=True, group="rest")
    async def _rest(self) -> None:
        await asyncio.sleep(PREVIEW_DELAY_S)
        await self._read_sight()

    @on(RowPicked)
    def pick(self, message: RowPicked) -> None:
        """A row was clicked."""
        self.action_move(message.place - self.view.cursor)
        if message.twice:
            self.action_open()

    def action_open(self) -> None:
        """Watch the run, fold the group, or launch the starter preset if there are no runs."""
        view = self.view
        if view.empty:
            self._start_starter()
        elif view.chosen is not None:
            self.post_message(msg.RunOpened(view.chosen.id))
        else:
            self.view = view.toggled()

    def _start_starter(self) -> None:
        from grpo_engine.config.parse import build
        from grpo_engine.presets import preset

        self.post_message(msg.LaunchRequested(build(preset("starter").tree, "preset starter")))

    def action_mark(self) -> None:
        """Mark the run or the whole group."""
        self.view = self.view.marked()
        self._rest()

    def action_mark_sweep(self) -> None:
        """Mark the run's sweep in place of what was marked, or unmark it."""
        chosen = self.view.chosen
        if chosen is not None and chosen.sweep_id is None:
            self.notify(f"{chosen.name or chosen.id} is part of no sweep; space marks runs.")
        self.view = self.view.mark_sweep()

    def action_baseline(self) -> None:
        """Pin the run on top as the baseline, or unpin it."""
        chosen = self.view.chosen
        if chosen is not None:
            key = 0 if chosen.key == self.view.baseline else chosen.key
            self.view = replace(self.view, baseline=key).on_run(chosen.key)

    # -- other screens ----------------------------------------------------------------------

    def action_new(self) -> None:
        """Open the New run form."""
        self.post_message(msg.NewRunRequested())

    def action_clone(self) -> None:
        """Open the form with this run's settings."""
        if self.view.chosen is not None:
            self.post_message(msg.NewRunRequested(clone=self.view.chosen.id))

    @work(exclusive=True, group="chat")
    async def action_chat(self) -> None:
        """Open a dialogue with the run's model and with the one it began as."""
        # these load pydantic, which takes as long as the first frame
        from grpo_tui.app.chat.client import pair_of
        from grpo_tui.app.tui.dialogs.chat import ChatScreen

        chosen = self.view.chosen
        if chosen is None:
            return
        try:
            pair = await self.workbench.reader.ask(
                lambda reader: pair_of(reader, chosen.id, None), "chat"
            )
        except (StoreError, EngineError, asyncio.CancelledError) as error:
            self.notify(str(error), severity="warning", markup=False)
            return
        self.app.push_screen(ChatScreen(pair))

    def action_resume(self) -> None:
        """Resume the run from its last checkpoint."""
        chosen = self.view.chosen
        if chosen is None:
            return
        if chosen.status in ("running", "paused"):
            self.notify(f"{chosen.name or chosen.id} has not ended yet; ⏎ opens it.")
        elif chosen.status == "completed":
            name = chosen.name or chosen.id
            self.notify(f"{name} is complete; `grpo-tui resume {name} --steps N` continues it.")
        else:
            self.post_message(msg.ResumeRequested(chosen.id))

    def action_compare(self) -> None:
        """Compare the marked runs side by side."""
        request = self._side_by_side()
        if len(request.refs) < 2:
            self.notify("Mark two runs or more with space, then press d.")
        else:
            self.post_message(request)

    def _side_by_side(self) -> msg.CompareRequested:
        """The baseline, if one is pinned, and the picked runs."""
        pinned = self.view.pinned
        picked = [run for run in self.view.picked if run.key != self.view.baseline]
        runs = [pinned, *picked] if pinned else picked
        return msg.CompareRequested(tuple(run.id for run in runs), pinned.id if pinned else "")

    def action_demo(self) -> None:
        """Play the bundled recording in the terminal, then return."""
        from grpo_tui.app.feed.demo import available
        from grpo_tui.app.jobs.detach import command
        from grpo_tui.experiments.processes import environment

        if not available():
            self.notify("The recording is missing; install grpo-tui again.", severity="error")
            return
        try:
            with self.app.suspend():
                subprocess.run(command("demo"), env=environment(), check=False)
        except SuspendNotSupported:
            self.notify("Not here: run `grpo-tui demo` in a terminal.", severity="warning")

    def action_queue(self) -> None:
        """Show the queue."""
        from grpo_tui.app.tui.screens.runs.queue import QueueScreen

        self.app.push_screen(QueueScreen(), lambda _: self.refresh_runs())

    # -- controlling the run under the cursor, wherever it is training ---------------------------

    def _session(self, run: RunSummary) -> Session | None:
        """The session of a run that trains in this process or is on screen."""
        bench = self.workbench
        if bench.live is not None and bench.live.run == run.key:
            return bench.live
        return bench.session if bench.session and bench.session.run == run.key else None

    def controlled_run(self) -> ControlledRun | None:
        """The run under the cursor."""
        run = self.view.chosen
        if run is None:
            return None
        session = self._session(run)
        if session is not None and session.feed.mark == "":
            return ControlledRun.of(session.state.snapshot())
        return ControlledRun(run.name or run.id, run.active, run.status == "paused", run.step,
                       run.total_steps)  # fmt: skip

    def send(self, verb: Asked) -> None:
        """Send a request; the answer names the run."""
        run, found = self.view.chosen, self.controlled_run()
        if run is None or found is None:
            self.notify("No run is under the cursor.", severity="warning")
        elif self.workbench.read_only:
            self.notify("This view is read-only.", severity="warning")
        elif not found.active:
            self.notify(f"{found.name} has ended.", severity="warning", markup=False)
        else:
            self.notify(f"Asked {found.name} to {WORDS[verb]}.", markup=False)
            session = self._session(run)
            if session is not None and session.feed.may_control:
                session.ask(verb)
                self.workbench.frame_now()
            else:
                self.run_worker(partial(self._leave_request, run, verb), thread=True,
                                group="control", exit_on_error=False)  # fmt: skip

    def _leave_request(self, run: RunSummary, verb: str) -> None:
        """Send a request through the store to the training process; called on a thread."""
        try:
            problem = writes.request(self.workbench.store, run, verb)
        except StoreError as error:
            problem = str(error)
        if problem and self.workbench.is_running:
            self.workbench.call_from_thread(
                self.notify, f"{run.name or run.id}: {problem}", severity="warning", markup=False
            )

    # -- changes in the store: archive, tags, names, notes -----------------------------------

    @work(group="write")
    async def _write(self, call: Callable[[], None], done: str) -> None:
        if self.workbench.read_only:
            self.notify("This view is read-only.", severity="warning")
            return
        try:
            await self.workbench.write(call)
        except StoreError as error:
            self.notify(str(error), severity="error")
            return
        self.notify(done)
        self.refresh_runs()

    def action_archive(self) -> None:
        """Archive the marked runs, or restore archived ones."""
        picked, path = self.view.picked, self.workbench.store
        going = [run for run in picked if run.active]
        if not picked:
            return
        if going:
            self.notify(f"{going[0].name or going[0].id} has not ended yet; stop it first (s).")
            return
        back = all(run.archived for run in picked)
        self._archived_last = () if back else picked
        count = f"{len(picked)} run{'s' if len(picked) > 1 else ''}"
        them = "it" if len(picked) == 1 else "them"
        done = f"{count} back in the list." if back else f"{count} archived; u brings {them} back."
        self.view = replace(self.view, marks=frozenset())
        self._write(partial(writes.set_archived, path, picked, not back), done)

    def action_undo(self) -> None:
        """Restore what was archived last."""
        runs, self._archived_last = self._archived_last, ()
        if runs:
            call = partial(writes.set_archived, self.workbench.store, runs, False)
            self._write(call, f"{len(runs)} run{'s' if len(runs) > 1 else ''} back in the list.")
        else:
            self.notify("Nothing was archived here; A shows archived runs.")

    def action_tags(self) -> None:
        """Ask for tags to add and remove."""
        picked = self.view.picked
        if not picked:
            return
        runs = "1 run" if len(picked) == 1 else f"{len(picked)} runs"
        hint = f"Tags for {runs}, separated by spaces; -tag removes one."
        now = " ".join(dict.fromkeys(tag for run in picked for tag in run.tags))

        def done(text: str | None) -> None:
            if text is not None and text.strip():
                call = partial(writes.change_tags, self.workbench.store, picked, text)
                self._write(call, "tags changed")

        self.app.push_screen(Ask("tags", f"{hint}\nNow: {now or 'none'}"), done)

    def action_rename(self) -> None:
        """Ask for another name."""
        run = self.view.chosen
        if run is None:
            return
        chosen: RunSummary = run

        def done(text: str | None) -> None:
            if text is not None and text.strip() and text != chosen.name:
                call = partial(writes.rename, self.workbench.store, chosen, text.strip())
                self._write(call, f"renamed to {text.strip()}")

        self.app.push_screen(Ask("name", "Another name for this run.", chosen.name), done)

    def action_note(self) -> None:
        """Ask for a note."""
        run = self.view.chosen
        if run is None:
            return
        chosen: RunSummary = run

        def done(text: str | None) -> None:
            if text is not None and text != chosen.note:
                self._write(partial(writes.annotate, self.workbench.store, chosen, text), "noted")

        self.app.push_screen(Ask("note", "What to remember about this run.", chosen.note), done)

    # -- the list ---------------------------------------------------------------------------

    def action_escape(self) -> None:
        """Clear the marks once no search is open."""
        if self.view.marks and not self.query_one(FindBar).display:
            self.view = replace(self.view, marks=frozenset())
        else:
            super().action_escape()

    def find(self, text: str) -> None:
        """Filter by words of name, tags and note, or an expression in the filter language."""
        self.view = replace(self.view, filter=text, problem="")
        self.refresh_runs()

    def _relist(self, **changes: Any) -> None:
        self.view = replace(self.view, **changes)
        self.refresh_runs()

    def action_running(self) -> None:
        """Toggle between active runs and all."""
        self._relist(running=not self.view.running)

    def action_archived(self) -> None:
        """Show or hide archived runs."""
        self._relist(archived=not self.view.archived)

    def action_group(self) -> None:
        """Group by the next property."""
        place = GROUPS.index(self.view.group) if self.view.group in GROUPS else -1
        self._relist(group=GROUPS[(place + 1) % len(GROUPS)], folded=frozenset())

    def action_group_by(self) -> None:
        """Ask what to group by."""
        hint = "A setting or a metric, such as optimizer.learning_rate. Empty for no groups."
        ask = Ask("group by", hint, self.view.group)
        self.app.push_screen(ask, lambda text: self._ask_done("group", text))

    def action_columns(self) -> None:
        """Ask which columns to add, and remember them."""
        hint = (
            "Settings and metrics, separated by commas, for example\n"
            "best reward, last kl, =optimizer.learning_rate as lr"
        )
        ask = Ask("columns", hint, ", ".join(self.view.columns))
        self.app.push_screen(ask, lambda text: self._ask_done("columns", text))

    def _ask_done(self, what: str, text: str | None) -> None:
        if text is not None:
            self._choose(what, tuple(part.strip() for part in text.split(",") if part.strip()))

    @work(exclusive=True, group="columns")
    async def _choose(self, what: str, columns: tuple[str, ...]) -> None:
        """Group by or show these columns, if the store has them."""
        fixed = what == "group" and columns[:1] and columns[0] in GROUPS
        try:
            if columns and not fixed:
                await self.workbench.reader.ask(
                    lambda reader: reader.runs(columns=columns, limit=0), "columns"
                )
        except StoreError as error:
            self.notify(str(error), severity="error", markup=False)
            return
        if what == "group":
            self._relist(group=columns[0] if columns else "", folded=frozenset())
            return
        self.workbench.preferences.remember(**{"runs.columns": list(columns)})
        self._relist(columns=columns)

    def action_order(self) -> None:
        """Sort by the next visible column; before the first layout, by the next of all columns."""
        shown = self.query_one(RunsTable).columns or [column.title for column in COLUMNS]
        keys = [column.sort for column in COLUMNS if column.sort and column.title in shown]
        now = self.view.sort.lstrip("-")
        place = keys.index(now) if now in keys else -1
        self._relist(sort="-" + keys[(place + 1) % len(keys)])

    def action_turn_round(self) -> None:
        """Reverse the order."""
        sort = self.view.sort
        self._relist(sort=sort[1:] if sort.startswith("-") else f"-{sort}")

    def exports(self) -> Mapping[str, Callable[[], str]]:
        """The listed runs as CSV, JSON or Markdown."""
        return {
            "csv": lambda: as_csv(self.view),
            "json": lambda: as_json(self.view),
            "md": lambda: as_markdown(self.view),
        }
