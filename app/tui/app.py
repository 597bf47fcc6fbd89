"""The workbench: five screens as modes, one shown run, a limited refresh rate, and the wiring."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual import events, on, work
from textual.content import Content
from textual.driver import Driver
from textual.notifications import SeverityLevel
from textual.screen import Screen

from grpo_engine.platform.priority import set_priority
from grpo_tui.app.feed.feed import Feed
from grpo_tui.app.feed.snapshot import Snapshot
from grpo_tui.app.text.safe_text import safe
from grpo_tui.app.tui import messages as msg
from grpo_tui.app.tui import terminal
from grpo_tui.app.tui.garbage_collection import IdleGarbageCollection
from grpo_tui.app.tui.keys import bindings
from grpo_tui.app.tui.lifecycle import RunApp
from grpo_tui.app.tui.preferences import Preferences, preferences_path
from grpo_tui.app.tui.screens.base import WorkbenchScreen
from grpo_tui.app.tui.textual_private import waits
from grpo_tui.app.tui.tour import Tour
from grpo_tui.experiments.db.paths import store_path
from grpo_tui.experiments.errors import StoreError
from grpo_tui.experiments.values import RunSummary

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader

SCREENS = {
    "runs": "grpo_tui.app.tui.screens.runs.screen:RunsScreen",
    "new_run": "grpo_tui.app.tui.screens.new_run.screen:NewRunScreen",
    "watch": "grpo_tui.app.tui.screens.watch.screen:WatchScreen",
    "rollouts": "grpo_tui.app.tui.screens.rollouts.screen:RolloutsScreen",
    "compare": "grpo_tui.app.tui.screens.compare.screen:CompareScreen",
}
FAST, SLOW, KEY_ACTIVE_S = 1 / 12, 1 / 4, 2.0
ACTIVE_S = 1.0  # between two looks for runs that are being trained
MESSAGES_KEPT = 200
SIGNS = {"error": "✗", "warning": "▲", "information": "·"}
# How long an early key waits for what a screen reads, and for what the keys before it open; then
# it acts on what is there, or is dropped. Last, the time between two looks.
EARLY_S, OPENING_S, RETRY_S = 2.0, 30.0, 0.002
LEAVING = frozenset("12345q") | {"escape", "ctrl+p"}  # keys that need nothing that is being read
OPENING = frozenset(("dialog", "chat", "resume", "lab"))  # groups of workers that open a dialog
PALETTE_HINT = "Find an action, a metric, a setting, a run or help, or ask"
DIALOG_HINT = "Find an action of this dialog; without it, metrics, runs and help"
# In order of use. Only leaves and modules that others import by the same name: two threads that
# enter an import cycle at different places would see half-initialized modules.
PRELOADED = (
    "grpo_tui.app.tui.screens.runs.dialogs",
    "grpo_tui.experiments.reader",
    "grpo_tui.app.feed.stored",
    "grpo_engine.config.settings",
    "grpo_tui.app.tui.screens.watch.screen",
    "grpo_tui.app.tui.screens.rollouts.screen",
    "grpo_tui.app.tui.dialogs.help.screen",
    "numpy",
    "grpo_tui.experiments.compare.values",
    "grpo_tui.app.tui.screens.compare.screen",
    "grpo_engine.config.parse",
    "grpo_tui.app.tui.screens.new_run.screen",
    "grpo_tui.experiments.store",
)
PAUSE_S = 0.02  # between two modules, to leave time for drawing
FRAMES_SHARE = 1 / 8  # of the time; the rest is left for key presses


def load(target: str) -> Screen[Any]:
    """Create a mode's screen, importing its module on first use."""
    return cast(Screen[Any], resolve_name(target)())


class Workbench(RunApp):
    """grpo-tui on a terminal."""

    TITLE = "grpo-tui"
    CSS_PATH = "workbench.tcss"
    MODES: ClassVar[dict[str, str | Callable[[], Screen[Any]]]] = {
        mode: partial(load, target) for mode, target in SCREENS.items()
    }
    DEFAULT_MODE = "runs"
    ESCAPE_TO_MINIMIZE = False
    # The palette's first opening loads the module.
    COMMANDS: ClassVar[set[Any]] = {partial(resolve_name, "grpo_tui.app.tui.finding:NameProvider")}
    BINDINGS = bindings("workbench")

    def get_driver_class(self) -> type[Driver]:
        """Return the driver that survives a lost terminal, unless the environment names another."""
        driver = super().get_driver_class()
        if driver.__name__ != "LinuxDriver":
            return driver
        from grpo_tui.app.tui.textual_private.terminal_driver import TerminalDriver

        return TerminalDriver

    def __init__(
        self,
        store: Path | None = None,
        *,
        feed: Feed | None = None,
        mode: str = "runs",
        read_only: bool = False,
        preferences: Preferences | None = None,
        clock: Callable[[], float] = time.time,
        tour: bool = False,
        first: Callable[[], Screen[Any]] | None = None,
    ) -> None:
        super().__init__(
            store or store_path(), feed, preferences or Preferences(), read_only=read_only
        )
        self.clock = clock
        self.tour = Tour() if tour else None
        self._first_mode, self._first_dialog = mode, first
        self._last_key = 0.0
        self._last_frame = self._frame_cost = 0.0
        self._idle = Snapshot()
        self.notices: deque[msg.Notice] = deque(maxlen=MESSAGES_KEPT)
        self._early: deque[events.Key] = deque()
        self._stopped = threading.Event()
        self._garbage_collection = IdleGarbageCollection()
        self._preloading = threading.Thread(target=self._preload, name="preloading", daemon=True)

    # -- startup and shutdown ---------------------------------------------------------------

    def on_load(self) -> None:
        """Start tasks from the event loop, as Python 3.11 does.

        From Python 3.12 on, Textual starts tasks eagerly. Fields of the first screen would then be
        mounted before the screen belongs to the app.
        """
        asyncio.get_running_loop().set_task_factory(None)

    async def on_mount(self) -> None:
        """Apply the user's key bindings, show the first screen and start drawing frames."""
        self.set_keymap(self.preferences.keymap)
        if problem := self.preferences.problem:
            self.notify(problem, severity="warning")
        self.call_after_refresh(self.reader.first_frame.set)
        if terminal.over_ssh():
            self.animation_level = "none"
        if self._first_mode != "runs":
            await self.show_mode(self._first_mode)
        if self._first_dialog is not None:
            await self.push_screen(self._first_dialog())
        if not self.is_headless:
            self.obey_signals()
            self.begin_capture_print(self)
            self.call_after_refresh(self._preloading.start)
        self.set_interval(FAST, self._poll, name="frames")
        self.set_interval(ACTIVE_S, self._read_active, name="active")

    def on_unmount(self) -> None:
        """Close the feed and the store."""
        self._stopped.set()
        if self._preloading.is_alive():
            self._preloading.join(1.0)  # the interpreter must not exit during an import
        self._garbage_collection.stop()
        if self.session is not None:
            self.session.close()
        if self.live is not None:
            self.live.close()
        self.reader.close()
        self._writer.shutdown(wait=False)  # changes that were asked for are still made

    def _preload(self) -> None:
        """Import what the first key on a screen needs, which takes 40 to 60 ms; runs on a thread.

        What is loaded by then stays loaded: a collection need not scan it.
        """
        for name in PRELOADED:
            if self._stopped.wait(PAUSE_S):
                return
            with suppress(Exception):  # whoever needs the module says why it cannot be loaded
                import_module(name)
        self._garbage_collection.start()

    async def on_event(self, event: events.Event) -> None:
        """Note when a key or the mouse was last used: frames are more frequent after input.

        A key waits until the keys before it are handled and what they opened is there.
        """
        if isinstance(event, events.Key | events.MouseDown | events.MouseScrollUp):
            self._last_key = self.clock()
        if isinstance(event, events.Key) and self._is_early(event):
            self._early.append(event)
            if len(self._early) == 1:
                self.run_worker(self._handle_early())
        else:
            await self._handle(event)

    async def _handle(self, event: events.Event) -> None:
        screen = self.screen if self.screen_stack else None
        if isinstance(event, events.Key) and self.tour is not None and screen is not None:
            self.tour.pressed(event.key, screen)
        await super().on_event(event)

    def _is_early(self, event: events.Key) -> bool:
        if event.is_forwarded or event.key == "ctrl+c":
            return False
        return bool(self._early) or not (self._is_settled() and self._is_ready(event.key))

    def _is_settled(self) -> bool:
        """Whether the keys before this one are handled, and what they open is on screen."""
        if self.is_acting or not self.screen_stack or not self.screen.is_mounted:
            return False
        screen = self.screen
        if any(node.message_queue_size for node in (screen.focused or screen).ancestors_with_self):
            return False
        return not isinstance(screen, WorkbenchScreen) or all(
            worker.is_finished or worker.node is not screen or worker.group not in OPENING
            for worker in self.workers
        )

    def _is_ready(self, key: str) -> bool:
        """Whether the screen has read what this key acts on."""
        if not isinstance(self.screen, WorkbenchScreen):
            return key == "escape" or getattr(self.screen, "ready", True)
        return key in LEAVING or self.screen.ready

    async def _handle_early(self) -> None:
        """Handle the keys that wait, in their order; none reaches what a dialog will cover."""
        begun = time.monotonic()
        while self._early:
            event, waited = self._early[0], time.monotonic() - begun
            if self._is_settled() and (self._is_ready(event.key) or waited >= EARLY_S):
                await self._handle(event)
                self._early.popleft()  # Later keys wait behind it while it is handled.
            elif waited >= OPENING_S:
                self._early.clear()
            else:
                await asyncio.sleep(RETRY_S)

    # -- frames -----------------------------------------------------------------------------

    def _poll(self) -> None:
        now = self.clock()
        # a key is answered before new data is drawn
        pace = FAST if FAST <= now - self._last_key < KEY_ACTIVE_S else SLOW
        pace = max(pace, self._frame_cost / FRAMES_SHARE)
        if now - self._last_frame >= pace - FAST / 2:
            self.frame_now()
        self._garbage_collection.poll(now - self._last_key)

    @work(exclusive=True, group="active")
    async def _read_active(self) -> None:
        """Read which runs are being trained, by whichever process."""
        before = {run.key for run in self.active}

        def changes(reader: "StoreReader") -> tuple[tuple[RunSummary, ...], tuple[RunSummary, ...]]:
            active = reader.active()
            gone = before - {run.key for run in active}
            return active, reader.runs(keys=[*gone], metrics=(), archived=True) if gone else ()

        with suppress(StoreError, InterruptedError, asyncio.CancelledError):
            self.note_active(*await self.reader.read(changes, "active"))

    def frame_now(self) -> None:
        """Draw new data on the active screen."""
        if self.is_exiting or not self.screen_stack:
            return
        now = self._last_frame = self.clock()
        begun = time.perf_counter()
        if self.session is not None and self.session.feed.deleted:
            self.notify(f"{self.session.feed.head.name} was deleted.")
            self.session = None
        snapshot = self.session.pull() if self.session is not None else self._idle
        if self.live is not None and self.live is not self.session:
            self.live.pull()
        screen = self.screen
        if isinstance(screen, WorkbenchScreen) and screen.is_mounted:
            with self.batch_update():
                screen.frame(snapshot, now, self.session.feed.mark if self.session else "")
        self._frame_cost = time.perf_counter() - begun

    # -- actions ----------------------------------------------------------------------------

    async def action_mode(self, mode: str, leads: bool = False) -> None:
        """Switch to a screen, which esc and q leave for the present one if that `leads` to it."""
        before = self.screen
        if not isinstance(before, WorkbenchScreen) or (mode == "new_run" and self.refused()):
            return
        if before.mode == mode and leads:
            return
        if mode == "watch" and not leads:
            live_runs = self.elsewhere(before.snapshot.head.id) if before.mode == mode else ()
            if run := self.began or next((run.id for run in live_runs), ""):
                self._open(run)
        request = before.shown_rollout() if mode == "rollouts" and not leads else None
        if before.mode == mode:
            before.again()
        elif request is not None:
            await self.forward(request)
        else:
            if not leads and self._opens_selected(before, mode):
                self._open(self.selected)
            await self.show_mode(mode)
        if isinstance(self.screen, WorkbenchScreen):
            self.screen.previous_mode = before.mode if leads else ""

    def _opens_selected(self, before: WorkbenchScreen, mode: str) -> bool:
        """Whether a screen is to show the run under the cursor of Runs.

        Watch does where no run is open; Rollouts, from Runs, wherever another one is.
        """
        if not self.selected or mode not in ("watch", "rollouts"):
            return False
        is_other = before.mode == "runs" and mode == "rollouts"
        return self.session is None or (is_other and self.selected != before.run_on_watch)

    def action_messages(self) -> None:
        """List the latest messages, the newest first."""
        from grpo_tui.app.tui.dialogs.page import PageDialog

        if isinstance(self.screen, WorkbenchScreen):
            lines = [safe(f"{head} {text}", "\n") for head, text in reversed(self.notices)]
            self.push_screen(PageDialog("messages", map(Content, lines or ["No messages."])))

    async def action_quit(self) -> None:
        """Ask before quitting; Textual's own quit key also ends up here."""
        self.action_request_quit()

    def action_command_palette(self) -> None:
        """List all actions by name; the search field keeps pasted text on one line."""
        from grpo_tui.app.tui.textual_private.action_palette import ActionPalette

        if not isinstance(self.screen, ActionPalette):
            hint = PALETTE_HINT if isinstance(self.screen, WorkbenchScreen) else DIALOG_HINT
            self.push_screen(ActionPalette(id="--command-palette", placeholder=hint))

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: SeverityLevel = "information",
        timeout: float | None = None,
        markup: bool = False,  # noqa: ARG002 - never
    ) -> None:
        """Show a message for a while in place of the one before, never reading markup in it."""
        at = time.strftime("%H:%M:%S", time.localtime(self.clock()))
        text = f"{title}: {message}" if title else message
        self.notices.append(msg.Notice(f"{at} {SIGNS[severity]}", text))
        self.clear_notifications()
        super().notify(
            safe(message, "\n"), title=title, severity=severity, timeout=timeout, markup=False
        )

    def change_theme(self, name: str) -> None:
        """Switch to another theme and remember it."""
        self.theme = name
        self.preferences.remember(theme=name)

    # -- requests from screens --------------------------------------------------------------

    @on(msg.ScreenRequest)
    async def forward(self, message: msg.ScreenRequest) -> None:
        """Switch to a screen and pass it a request."""
        if isinstance(message, msg.RolloutOpened) and not message.run and self.session is not None:
            message.run = self.session.run
        await self.action_mode(message.mode, leads=True)
        screen = self.screen
        if isinstance(screen, WorkbenchScreen) and screen.mode == message.mode:
            screen.receive(message)


def open_workbench(
    store: Path | None = None, *, feed: Callable[[], Feed] | None = None, **options: Any
) -> int:
    """Run the workbench on this terminal."""
    set_priority("drawing")
    preferences = Preferences(preferences_path())
    app = Workbench(store, feed=feed() if feed else None, preferences=preferences, **options)
    waits.shorten()
    try:
        code = app.run()
    finally:
        app.finish_run()
    return code or app.return_code or 0
