"""The lifecycle of runs in the app: start, watch, finish, hand over, and survive quitting."""

import asyncio
import shlex
import signal
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from textual import events, on, work
from textual.message import Message

from grpo_tui.app.feed.feed import Feed, Session
from grpo_tui.app.feed.snapshot import Head, Request, Snapshot
from grpo_tui.app.jobs import launch as launching
from grpo_tui.app.text.numbers import short
from grpo_tui.app.text.stderr import print_stderr
from grpo_tui.app.tui import messages as msg
from grpo_tui.app.tui import terminal
from grpo_tui.app.tui.bridge import Bridge
from grpo_tui.app.tui.dialogs.leaving import Plan, leave_dialog, quit_dialog, wait_dialog
from grpo_tui.app.tui.preferences import Preferences
from grpo_tui.app.tui.store import writes
from grpo_tui.app.tui.store.reader import ReaderThread
from grpo_tui.app.tui.textual_private.themed_app import ThemedApp
from grpo_tui.app.tui.tour import Tour
from grpo_tui.experiments.errors import StoreError
from grpo_tui.experiments.values import ENDED, BoardView, RunSummary

if TYPE_CHECKING:
    from grpo_engine.config.settings import RunConfig
    from grpo_tui.experiments.store import ExperimentStore

T = TypeVar("T")

CHECK_S = 60.0  # seconds; the next message replaces one about checks


class StartingFeed(Feed):
    """A run that was launched and has not begun; `before` is the run that was shown until then."""

    def __init__(self, head: Head, before: str, task: str) -> None:
        super().__init__(head)
        self.before = before
        started = time.time()
        self._progress = BoardView(phase="starting", phase_detail=task, phase_started=started)

    def board(self) -> BoardView:
        return self._progress


def head_of_new(config: "RunConfig") -> Head:
    """The names of a run that was launched."""
    return Head(
        name=config.name or "the run",
        model=config.model.path,
        recipe=config.algorithm.recipe or "",
        total_steps=config.steps,
    )


class RunApp(ThemedApp):
    """The app as its screens see it: the store, the run on screen, and this process's run.

    No thread starts before it is needed.
    """

    def __init__(
        self, store: Path, feed: Feed | None, preferences: Preferences, *, read_only: bool
    ) -> None:
        super().__init__(preferences.theme)
        self.store = store
        self.reader = ReaderThread(store, self._warn)
        self._writer = ThreadPoolExecutor(1, "writer")
        self.preferences = preferences
        self.read_only = read_only
        self.bridge = Bridge(store, self._post)
        self.session = Session(feed) if feed is not None else None
        self.live: Session | None = None
        self.starting: Session | None = None  # a run that was launched and has not begun
        self.marked: tuple[str, ...] = ()  # the runs marked on Runs
        self.selected = ""  # the run under the cursor of Runs
        self.active: tuple[RunSummary, ...] = ()  # being trained, by any process; newest first
        self.follows_queue = False  # whether the queue was started from here
        self.began = ""  # the run that it has begun since, and that Watch has not shown
        self.has_deleted = False  # whether there are deleted runs to purge
        self.tour: Tour | None = None
        self.plan: Plan = ""
        self.handed_over = ""
        self.terminal_lost = False

    def _warn(self, text: str) -> None:
        self.notify(text, severity="warning", timeout=15)

    def _post(self, message: Message) -> None:
        """Receive a message from the engine thread."""
        if self.is_running:
            self.post_message(message)

    async def write(self, call: "Callable[[ExperimentStore], T]") -> T:
        """Change the store on a thread, after the changes that were asked for earlier."""

        def change() -> T:
            with writes.opened(self.store) as store:
                return call(store)

        # shielded: a screen that is left cancels its workers
        loop = asyncio.get_running_loop()
        return await asyncio.shield(loop.run_in_executor(self._writer, change))

    # -- the shown run ----------------------------------------------------------------------

    def frame_now(self) -> None:
        """Draw new data; the workbench implements it."""
        raise NotImplementedError

    async def action_mode(self, mode: str, leads: bool = False) -> None:
        """Switch to a screen; the workbench implements it."""
        raise NotImplementedError

    def show(self, session: Session) -> None:
        """Switch to this run; a run of this process stays up to date in the background."""
        if self.session is not None and self.session not in (self.live, session):
            self.session.close()
        self.session = session
        self.frame_now()

    def note_active(self, runs: tuple[RunSummary, ...], ended: tuple[RunSummary, ...]) -> None:
        """Take the runs that are being trained; what the queue has begun is next on Watch.

        Of those that ended since, the end is reported, except of the runs that this process trains
        or shows: their ends are on screen.
        """
        earlier = {run.id for run in self.active}
        new = [run.id for run in runs if run.id not in earlier]
        if self.follows_queue and new:
            self.began = new[0]
        self.active = runs
        current = self.session.run if self.session is not None else 0
        for run in ended:
            if run.id != self.bridge.run and run.key != current and run.status in ENDED:
                self._report_end(run)

    def elsewhere(self, current: str) -> tuple[RunSummary, ...]:
        """The other runs that are being trained, first the one that the key of Watch goes to."""
        ids = [run.id for run in self.active]
        order = (self.began, current, self.bridge.run)
        first = next((run for run in order if run in ids), "")
        index = ids.index(first) + (first == current) if first in ids else 0
        turned = (*self.active[index:], *self.active[:index])
        return tuple(run for run in turned if run.id != current)

    def _report_end(self, run: RunSummary) -> None:
        text = f"{run.title} {run.status} at step {run.step}"
        if run.status == "lost":
            text = f"The process of {run.title} is gone at step {run.step}; r on Runs resumes it."
        error = run.error.partition("\n")[0]
        self.notify(
            f"{text}: {error}" if error and run.status == "failed" else text,
            severity="error" if run.status in ("failed", "lost") else "information",
        )

    def close_runs(self, runs: Collection[int]) -> None:
        """Show no run if the one on screen is among these, which are being deleted."""
        if self.session is not None and self.session.run in runs:
            self.session.close()
            self.session = None
            self.frame_now()

    def refused(self, may_change: bool = True) -> bool:
        """Whether nothing can be changed from here, which is reported."""
        refused = self.read_only or not may_change
        if refused:
            self.notify("This view is read-only.", severity="warning")
        return refused

    def control(self, verb: Request) -> None:
        """Send a request to the shown run and show it at once."""
        if self.session is None:
            self.notify("No run is open. Choose one on Runs.", severity="warning")
        elif self.session is self.starting:
            self.notify("This run has not begun yet.", severity="warning")
        elif not self.session.state.snapshot().active:
            self.notify("This run has ended.", severity="warning")
        elif not self.refused(self.session.feed.may_control):
            self.session.ask(verb)
            self.frame_now()

    @on(msg.MuteRequested)
    def mute(self, message: msg.MuteRequested) -> None:
        """Mute or unmute a kind of alert in the shown run and show it at once."""
        session = self.session
        if session is not None and not self.refused():
            session.mute(message.rule, message.muted)
            self.frame_now()
            self.run_worker(self._write_mute(session, message))

    async def _write_mute(self, session: Session, message: msg.MuteRequested) -> None:
        try:
            await self.write(lambda store: store.mute(session.run, message.rule, message.muted))
        except StoreError as error:
            session.mute(message.rule, not message.muted)
            self.notify(str(error), severity="error")

    def request_of_engine(self, verb: Request) -> None:
        """Send a request to the run in this process, shown or not."""
        if self.live is not None:
            self.live.ask(verb)
        elif self.bridge.control is not None and verb:
            self.bridge.control.ask(verb)
        if self.is_running:
            self.frame_now()

    def _open(self, ref: str, name: str = "") -> None:
        self.began = ""
        from grpo_tui.app.feed.stored import StoreFeed

        if self.live is not None and ref in (self.bridge.run, self.bridge.name):
            self.show(self.live)
        else:
            name = name or next((run.title for run in self.active if run.id == ref), "")
            head = Head(id=ref, name=name) if name else None
            feed = StoreFeed(self.store, ref, may_control=not self.read_only, head=head)
            self.show(Session(feed))

    @on(msg.RunOpened)
    async def open_run(self, message: msg.RunOpened) -> None:
        """Show a stored run, or this process's own."""
        self._open(message.ref, message.name)
        await self.action_mode("watch", leads=True)

    def copy(self, text: str) -> None:
        """Copy text and report the result."""
        self.notify(terminal.copy(self, text))

    # -- starting ---------------------------------------------------------------------------

    @on(msg.LaunchRequested)
    async def launch(self, message: msg.LaunchRequested) -> None:
        """Start a run here, detached or in the queue; detached if one trains here already."""
        if self.refused():
            return
        config = message.config
        if message.where == "queue":
            name = config.name or "the run"
            text = f"Checking the settings of {name}, which then waits in the queue."
            self.notify(text, timeout=CHECK_S)
            start = partial(launching.enqueue, config, self.store, message.parent)
            self.follows_queue = True
            self._start(start, "waits in the queue; Q on Runs shows it.", "")
            return
        if message.where == "detached" or self.bridge.running:
            self._start(partial(launching.detached, config, self.store, message.parent))
        else:
            self.bridge.launch(config, message.parent, tried=message.tried)
        await self._await(head_of_new(config), "" if message.tried else "checks its settings")

    @on(msg.ResumeRequested)
    async def resume(self, message: msg.ResumeRequested) -> None:
        """Resume a stored run here, or detached if one trains here already."""
        if self.refused():
            return
        if self.bridge.running:
            self._start(partial(launching.resume_detached, message.ref, self.store))
        else:
            self.bridge.resume(message.ref)
        await self._await(Head(name=message.name or message.ref), "reads its checkpoint")

    async def _await(self, head: Head, task: str) -> None:
        """Show on Watch that a run starts; when it has begun, no screen is left for it."""
        before = self.session.feed.head.id if self.session is not None else ""
        self.starting = Session(StartingFeed(head, before, task))
        self.show(self.starting)
        await self.action_mode("watch", leads=True)

    def _show_begun(self, run: str, name: str) -> None:
        """Show a run that has begun where it was awaited; elsewhere, say what shows it."""
        awaited, self.starting = self.starting, None
        if awaited is not None and self.session is awaited:
            self._open(run, name)
        else:
            self.began = run
        if self.began or getattr(self.screen, "mode", "") != "watch":
            self.notify(f"{name} is training now; 3 shows it.")

    @on(msg.SweepRequested)
    def launch_sweep(self, message: msg.SweepRequested) -> None:
        """Queue all runs of a sweep, or none if one of them would fail."""
        if self.refused():
            return
        name, points, store = message.name, message.points, self.store
        text = f"checking the settings of its {len(points)} points…"
        self.notify(f"Starting the sweep {name}: {text}", timeout=CHECK_S)

        def start() -> str:
            count = launching.enqueue_sweep(name, points, message.seeds, store, message.parent)
            if message.start:
                launching.start_queue_worker(store)
            return f"{count} runs of {name}"

        self.follows_queue = True
        state = "train one after another" if message.start else "wait in the queue"
        self._start(start, f"{state}; Q on Runs shows them.", "runs" if message.start else "")

    async def _attempt(self, start: Callable[[], str]) -> str | None:
        """What a start on a thread returns; None if it failed, which is reported."""
        try:
            return await asyncio.to_thread(start)
        except Exception as error:  # told on the screen, whatever it is
            self.report_refusal(msg.LaunchRefused(error))
            return None

    @work
    async def _start(
        self, start: Callable[[], str], text: str = "runs in the background.", mode: str = "watch"
    ) -> None:
        """Queue runs, or start one in its own process; say so, and show them."""
        name = await self._attempt(start)
        if name is None and mode == "watch":
            await self._show_before()
        elif name is not None:
            self.notify(f"{name} {text}")
            if mode == "watch":
                self._show_begun(name, name)
            elif mode:
                await self.action_mode(mode, leads=True)

    @on(msg.RunBegan)
    def show_live(self, message: msg.RunBegan) -> None:
        """Show a run that has started in this process."""
        self.live = Session(message.feed)
        self._show_begun(self.bridge.run, self.bridge.name)

    @on(msg.LaunchRefused)
    async def refuse_launch(self, message: msg.LaunchRefused) -> None:
        """Return to where the run was launched, and report why it was not started."""
        await self._show_before()
        self.report_refusal(message)

    async def _show_before(self) -> None:
        """Show the run that was shown before one that does not start."""
        awaited, self.starting = self.starting, None
        if awaited is None or self.session is not awaited:
            return
        assert isinstance(awaited.feed, StartingFeed)
        self.session = None
        if awaited.feed.before:
            self._open(awaited.feed.before)
        self.frame_now()
        if getattr(self.screen, "mode", "") == "watch":
            await self.action_mode(getattr(self.screen, "previous_mode", "") or "runs")

    def report_refusal(self, message: msg.LaunchRefused) -> None:
        """Report why a run was not started."""
        text = " ".join(str(message.error).split()) or repr(message.error)
        self.notify(text, title="not started", severity="error", timeout=12)

    # -- ending -----------------------------------------------------------------------------

    @on(msg.EngineEnded)
    def end(self, message: msg.EngineEnded) -> None:
        """Report that this process's run has finished, and quit if that was requested."""
        live, self.live, name = self.live, None, self.bridge.name
        snapshot = live.pull() if live is not None else Snapshot()
        if live is not None and live is not self.session:
            live.close()
        self.frame_now()
        if self.plan == "hand_over" and snapshot.status == "stopped":
            self.notify("Handing the run over to a background process.")
            self._hand_over()
        elif self.plan:
            self.exit(0)
        elif message.error and live is not None:
            from grpo_tui.app.tui.dialogs.crash import crash_page

            self.write_to_terminal(terminal.notification(f"{name} failed"))
            self.push_screen(crash_page(snapshot, message.error, message.traceback))
        elif live is not None:
            reward = snapshot.series.get("reward")
            text = f"{name} {snapshot.status} at step {snapshot.step}"
            text += f", reward {short(reward.value)}" if reward is not None else ""
            self.write_to_terminal(terminal.notification(text))
            self.notify(text)

    @work
    async def _hand_over(self) -> None:
        name = await self._attempt(partial(launching.resume_detached, self.bridge.run, self.store))
        if name is None:
            self.plan = ""  # the workbench stays open
        else:
            self.handed_over = name
            self.exit(0)

    # -- leaving ----------------------------------------------------------------------------

    def action_request_quit(self) -> None:
        """Ask how to quit, if there is anything to decide."""
        if self.screen.is_modal:
            return
        session = self.session
        snapshot = session.state.snapshot() if session else Snapshot()
        if self.bridge.running:
            name = self.bridge.name or "The run"
            dialog = wait_dialog(snapshot, name) if self.plan else quit_dialog(name)
        else:
            continues = snapshot.active and session and not session.feed.mark
            watched = snapshot.head.name if continues else ""
            dialog = leave_dialog(watched, deleted=self.has_deleted)
        self.push_screen(dialog, lambda plan: self._follow(plan or ""))

    def _follow(self, plan: Plan) -> None:
        """Carry out the plan; stopping and handing over end once the engine has."""
        if plan == "leave":
            self.exit(0)
        elif plan == "now" and self.bridge.control is not None:
            self.request_of_engine("stop_now")
        elif plan in ("hand_over", "stop"):
            self.plan = plan
            self.request_of_engine("stop_after_step")
            self.notify("Leaving when the step is done and saved. Ctrl-C again offers not to wait.")

    def obey_signals(self) -> None:
        """Checkpoint and stop on SIGTERM; close the screen but not the engine on SIGHUP."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._terminate)
        loop.add_signal_handler(signal.SIGHUP, self.lose_terminal)

    def _terminate(self) -> None:
        """Checkpoint and stop; without a run, quit."""
        if self.bridge.running:
            self._follow("stop")
        else:
            self.exit(0)

    def lose_terminal(self) -> None:
        """Handle a lost terminal: discard output, close the screen, let the engine finish."""
        if self.terminal_lost:
            return
        terminal.discard_output()
        self.terminal_lost = True
        self.exit(0)

    def finish_run(self) -> None:
        """After the screen closes, wait for the engine or report that the run was handed over.

        After an error of the workbench, say what became of its run and which command shows it.
        """
        crashed = self.has_crashed
        if self.has_deleted and not (crashed or self.read_only or self.terminal_lost):
            self._purge()
        if self.plan == "hand_over" and self.handed_over:
            watch = f"grpo-tui watch {shlex.quote(self.handed_over)}"
            print_stderr(f"{self.handed_over} continues in the background; to see it: {watch}")
            return
        if crashed:
            state = "what was recorded is in the store"
            if self.bridge.running:
                state = f"run {self.bridge.name} goes on in this process, ctrl-c saves and stops it"
            text = f"{state}; to see it: grpo-tui --db {shlex.quote(str(self.store))}"
            print_stderr(f"grpo-tui: the workbench has failed; {text}")
        if not self.bridge.running:
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.request_of_engine("stop_after_step"))
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        while not self.bridge.wait(1.0):
            pass

    def _purge(self) -> None:
        """Remove the deleted runs; what fails is left to the next command that writes."""
        from grpo_tui.experiments.purge import purge_deleted

        with suppress(StoreError, OSError), writes.opened(self.store) as store:
            purge_deleted(store)

    def panic(self, *renderables: Any) -> None:
        """Close only the screen, not the run, if the terminal is gone."""
        if not self.terminal_lost and not self.is_headless and terminal.is_lost():
            self.lose_terminal()
        elif not self.terminal_lost:
            super().panic(*renderables)

    def on_print(self, event: events.Print) -> None:
        """Write what libraries print to the shown run's log."""
        text = event.text.strip()
        session = self.live or self.session
        if text and session is not None:
            session.state.note(text)
