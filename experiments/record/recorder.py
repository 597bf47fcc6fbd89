"""The recorder: a thread that records the events of a run before anything shows them."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Empty, Queue, SimpleQueue
from typing import Any

from grpo_engine import events as ev
from grpo_engine.control import Control
from grpo_engine.versions import versions
from grpo_tui.experiments.board import Board
from grpo_tui.experiments.db.machine import network_file_system
from grpo_tui.experiments.db.paths import run_folder, spill_file
from grpo_tui.experiments.db.spilled import spilled
from grpo_tui.experiments.errors import RunNotFoundError
from grpo_tui.experiments.processes import environment
from grpo_tui.experiments.record import spill
from grpo_tui.experiments.record.live import Exchange
from grpo_tui.experiments.record.writer import PROGRESS, RunWriter
from grpo_tui.experiments.store import ExperimentStore
from grpo_tui.experiments.values import RecordedEvent, TimedEvent

POLL_S = 0.2
LOCK_LIMIT_S = 2.0
AT_ONCE = (ev.StepFinished, ev.RunPaused, ev.RunResumed)  # other events wait for the next poll
QUEUE_ITEM = "GRPO_TUI_QUEUE_ITEM"
PARENT = "GRPO_TUI_PARENT"  # names the run that the new run is a clone of


def start_run(
    path: Path,
    config: Any,
    *,
    name: str = "",
    control: Control | None = None,
    parent: str = "",
    tags: tuple[str, ...] = (),
    origin: str = "here",
) -> "Recorder":
    """Record a new run; `config` is a RunConfig or its tree; requests go to `control`.

    `origin` names another trainer, for people. Raises StoreError if the store at `path` cannot be
    written.
    """
    store, warning = writable(path)
    key = None
    if parent := parent or os.environ.pop(PARENT, ""):
        with suppress(RunNotFoundError):  # the parent was deleted while its clone waited
            key = store.key_of(parent)
    row = store.create_run(
        config,
        name=name,
        parent=key,
        code_version=versions().get("grpo-tui", ""),
        tags=tags,
        origin=origin,
        status="lost",  # stays if no attempt begins
    )
    # Set by the queue's worker for its child; the child's children must not inherit it.
    if item := os.environ.pop(QUEUE_ITEM, ""):
        from grpo_tui.experiments.queue import RunQueue

        RunQueue(store).attach(int(item), row.id)
    return Recorder(store, row.id, 0, control, warning=warning)


def resume_run(
    path: Path,
    run: int | str,
    *,
    from_step: int,
    control: Control | None = None,
    config: Any = None,
) -> "Recorder":
    """Record a new attempt at a stored run; rows after `from_step` are hidden.

    `config` replaces its settings, for a run that continues for more steps.
    """
    store, warning = writable(path, run)
    return Recorder(store, store.key_of(run), from_step, control, config, warning)


def writable(path: Path, resumed: int | str = "") -> tuple[ExperimentStore, str]:
    """Open a store, read in spilled events, and return it with a warning for the user."""
    store = ExperimentStore(path)
    _, complaints = spill.read_in_all(store, store.key_of(resumed) if resumed else 0)
    if remote := network_file_system(path.parent):
        complaints.append(
            f"{path} is on a network file system ({remote}): only one process may use it at a time"
        )
    return store, "\n".join(complaints)


class Recorder:
    """Records one attempt at a run: the engine puts events, a thread writes them."""

    def __init__(
        self,
        store: ExperimentStore,
        run: int,
        from_step: int,
        control: Control | None = None,
        config: Any = None,
        warning: str = "",
    ) -> None:
        self.store, self.key, self.warning = store, run, warning
        row = store.run_row(run)
        self.id: str = row.short
        self.name = row.name
        self.seq = self.earlier = row.last_seq  # of the last event, and of the last before `facts`
        self.folder = run_folder(store.path, row.short)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.board = Board()
        self.left = ""  # set at the end if events are not in the store
        self.ended = False
        self.closed = False  # set once the run has ended and everything is in the store
        self._queue: Queue[Callable[[], None]] = Queue(maxsize=4096)
        self._events: SimpleQueue[TimedEvent | None] | None = None  # made for the first viewer
        self._from_step, self._cause = from_step, ""
        self._pending: list[RecordedEvent] = []
        self._spilling = False
        self._control = control or Control()
        self._spill_file = spill_file(store.path, self.id)
        self.attempt = store.start_attempt(run, from_step, config)
        self.writer = RunWriter(store, row)
        self._exchange = Exchange(self.writer, self.board, self._control)
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()
        if warning:
            self._warn(warning)
        for tracker in (row.config.get("record") or {}).get("trackers") or ():
            start_tracker(str(tracker), store.path, self.id, from_step or -1, self._warn)

    @property
    def path(self) -> Path:
        """The store's current path; it differs from the original if the file was replaced."""
        return self.store.path

    @property
    def backlog(self) -> int:
        """Events that are in memory only."""
        return self._queue.qsize() + len(self._pending)

    def _warn(self, text: str) -> None:
        if not self.ended:
            self.put(self._warning(text))

    def _warning(self, text: str) -> ev.Event:
        step = self.board.view.step or self._from_step
        return ev.warning(step, text)

    # -- on the engine's thread -----------------------------------------------------------------

    def put(self, event: ev.Event) -> None:
        """Queue the event for recording; blocks only while the queue is full."""
        self.board.apply(event)
        self.progressed()
        if not isinstance(event, PROGRESS):
            self._queue.put(partial(self._add, self._exchange.progress_at, event))

    def progressed(self) -> None:
        """Say that the run is not stalled."""
        self._exchange.progress_at = time.time()

    @property
    def facts(self) -> "SimpleQueue[TimedEvent | None]":
        """The events after the first access, each after its commit; None marks the end."""
        if self._events is None:
            self.flush()
            self.earlier, self._events = self.seq, SimpleQueue()
        return self._events

    def flush(self, timeout: float | None = None, end: str | None = None) -> bool:
        """Wait until all events so far were written or failed, and return whether they are stored.

        `end` is the cause with which the attempt ends.
        """
        if self.ended:
            return self.closed
        stored = Future[bool]()

        def flush() -> None:
            try:
                self._commit() if end is None else self._end(end)
            finally:
                stored.set_result(not self._pending and not self._spilling)

        self._queue.put(flush)
        with suppress(TimeoutError):
            return stored.result(timeout)
        return False

    def close(self, cause: str = "") -> bool:
        """Flush, end the attempt, and return whether everything is in the store.

        While events wait for the store, the thread goes on trying.
        """
        self.flush(end=cause)
        if self.closed:
            self._thread.join()
        return self.closed

    # -- on the recorder's thread -----------------------------------------------------------

    def _run(self) -> None:
        next_poll = time.monotonic()
        while not self.closed:
            with suppress(Empty):
                self._guarded(self._queue.get(timeout=POLL_S))
            if time.monotonic() >= next_poll:
                self._guarded(self._poll)
                next_poll = time.monotonic() + POLL_S  # a locked store takes seconds
        self.writer.close()

    def _guarded(self, act: Callable[[], None]) -> None:
        """Show an error of the recorder; it must end neither this thread nor the run."""
        try:
            act()
        except Exception as error:
            self.board.warn(f"the recorder failed: {type(error).__name__}: {error}")

    def _add(self, at: float, event: ev.Event) -> None:
        self.seq += 1
        self._pending.append(RecordedEvent(self.seq, at, event))
        if isinstance(event, AT_ONCE):
            self._commit()

    def _note(self, text: str) -> None:
        """Add a warning about the store to the events."""
        self._add(time.time(), self._warning(text))

    def _commit(self) -> None:
        """Write pending events to the store, or to the run's file while the store fails."""
        if self._pending and not self._spilling:
            try:
                self.writer.write(self._pending, limit=LOCK_LIMIT_S)
                self.writer.checkpoint_if_long()
            except Exception as error:  # events are kept after any error
                self._spilling = True
                text = (
                    f"the store {self.path} cannot be written ({error}); training continues, "
                    f"events are kept in {self._spill_file} and imported later"
                )
                self._note(text)
                self.board.warn(text)
            else:
                self._deliver()
                self.board.warn("")
        if self._pending:
            self._spill()

    def _deliver(self) -> None:
        if self._events is not None:
            for item in self._pending:
                self._events.put((item.at, item.event))
        self._pending = []

    # -- when the store fails -------------------------------------------------------------------

    def _spill(self) -> None:
        try:
            spill.append(self._spill_file, self._pending)
        except OSError as error:
            text = (
                f"neither {self.path} nor {self._spill_file} can be written "
                f"({error.strerror or error}); {len(self._pending)} events wait in memory, and "
                "the run waits before its next step: free some disk space"
            )
            self.board.warn(text)
            self._control.block(text)
            return
        self._control.block("")
        self._deliver()

    def _read_in(self) -> None:
        """Move spilled events into the store, if it can be written again."""
        with suppress(*spill.STORE_ERRORS):
            self.writer.reopen()
            # The next commit restarts the write-ahead log, which may free enough of a full disk.
            self.writer.checkpoint()
            count, complaint = spill.read_in(self.writer)
            self._spilling = False
            self._control.block("")
            self._note(f"the store can be written again; {count} spilled events were imported")
            if complaint:
                self._note(complaint)
            self._commit()

    # -- five times a second --------------------------------------------------------------------

    def _poll(self) -> None:
        """Write pending and spilled events, and exchange with viewers."""
        if note := self.writer.rescue():
            self._note(note)
        self._commit()
        if self._spilling:
            self._read_in()
        if not self._spilling and self.ended:
            self._finish()
        elif not self._spilling:
            with suppress(*spill.STORE_ERRORS):
                self._exchange.poll()

    def _end(self, cause: str) -> None:
        """End the attempt; the store records the end once it has all events."""
        if self.ended:
            return
        self.ended, self._cause = True, cause
        self._poll()
        waiting = spilled(self.path, self.id)
        if waiting.file or self._pending:
            memory = f", {len(self._pending)} only in memory" if self._pending else ""
            self.left = f"run {self.name}: {waiting}{memory}"
        if self._events is not None:
            self._events.put(None)

    def _finish(self) -> None:
        self.closed = True
        with suppress(*spill.STORE_ERRORS):
            self.store.end_attempt(self.key, self.attempt, self._cause)


def start_tracker(
    tracker: str, store: Path, run: str, after: int, warn: Callable[[str], None]
) -> None:
    """Start a tracker in a process of its own, which can neither delay nor end the run.

    `warn` is called if it fails.
    """
    module = "grpo_tui.experiments.export.follow"
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", module, store, run, tracker, str(after)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env=environment(),
    )

    def wait() -> None:
        output = process.communicate()[1].decode(errors="replace")
        if status := process.returncode:
            reason = output.strip().rpartition("\n")[2] or "no message"
            warn(
                f"{tracker} ended with status {status}: {reason}; the run continues, and "
                f"`grpo-tui export {run} --format {tracker} --out FOLDER` writes all of it"
            )

    threading.Thread(target=wait, name=f"tracker {tracker}", daemon=True).start()
