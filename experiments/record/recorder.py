"""The recorder: a thread that records the events of a run before anything shows them."""

import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Empty, Queue, SimpleQueue
from typing import Any

from grpo_engine import events as ev
from grpo_engine.control import Control
from grpo_tui.experiments.board import Board
from grpo_tui.experiments.db.machine import network_file_system
from grpo_tui.experiments.db.paths import run_folder, spill_file
from grpo_tui.experiments.db.spilled import free_space, spilled
from grpo_tui.experiments.errors import StoreError, StoreReadOnlyError
from grpo_tui.experiments.processes import environment
from grpo_tui.experiments.record import spill
from grpo_tui.experiments.record.live import Exchange
from grpo_tui.experiments.record.store_file import StoreFile
from grpo_tui.experiments.record.writer import PROGRESS, RunWriter
from grpo_tui.experiments.store import ExperimentStore
from grpo_tui.experiments.values import RecordedEvent

POLL_S = 0.2
LOCK_LIMIT_S = 2.0
AT_ONCE = (
    ev.StepFinished, ev.RunStarted, ev.RunPaused, ev.RunResumed, ev.RunFinished, ev.RunFailed,
    ev.CheckpointSaved, ev.EvaluationFinished,
)  # fmt: skip
QUEUE_ITEM = "GRPO_TUI_QUEUE_ITEM"
PARENT = "GRPO_TUI_PARENT"  # the run that the new process's run is a clone of


def start_run(
    path: Path, config: Any, *, name: str = "", control: Control | None = None,
    parent: str | None = None, code_version: str = "", tags: tuple[str, ...] = (),
) -> "Recorder":  # fmt: skip
    """Record a new run; `config` is a RunConfig or its tree; requests go to `control`.

    Raises StoreError if the store at `path` cannot be written.
    """
    store, warning = writable(path)
    row = store.create_run(
        config, name=name, parent=_parent(store, parent), code_version=code_version, tags=tags,
        status="lost",  # if this process ends before the first attempt begins
    )  # fmt: skip
    # the queue's worker sets this for its child, whose own children must not inherit it
    if item := os.environ.pop(QUEUE_ITEM, ""):
        from grpo_tui.experiments.queue import RunQueue

        RunQueue(store).attach(int(item), row.id)
    return Recorder(store, row.id, 0, control, warning=warning)


def resume_run(
    path: Path, run: int | str, *, from_step: int, control: Control | None = None,
    config: Any = None,
) -> "Recorder":  # fmt: skip
    """Record a new attempt at a stored run; rows after `from_step` are hidden.

    `config` replaces its settings, for a run that continues for more steps.
    """
    store, warning = writable(path)
    return Recorder(store, store.key_of(run), from_step, control, config, warning)


def writable(path: Path) -> tuple[ExperimentStore, str]:
    """Open a store, take in what waits for it, and return what the user should know of it."""
    store = ExperimentStore(path)
    if store.read_only:
        raise StoreReadOnlyError(store.read_only)
    _, complaints = spill.read_in_all(store)
    if remote := network_file_system(path.parent):
        complaints.append(
            f"{path} is on a network file system ({remote}): only one process may use it at a time"
        )
    return store, "\n".join(complaints)


def _parent(store: ExperimentStore, parent: str | None) -> int | None:
    if parent:
        return store.key_of(parent)
    try:
        return store.key_of(left) if (left := os.environ.pop(PARENT, "")) else None
    except StoreError:
        return None  # the parent was deleted while its clone waited


class Recorder:
    """Records one attempt at a run: the engine puts events, a thread writes them."""

    def __init__(
        self, store: ExperimentStore, run: int, from_step: int, control: Control | None = None,
        config: Any = None, warning: str = "",
    ) -> None:  # fmt: skip
        self.store, self.key, self.warning = store, run, warning
        row = store.run_row(run)
        self.id: str = row.short
        self.name, self.seq = row.name, row.last_seq
        self.folder = run_folder(store.path, row.short)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.board = Board()
        self.lock_waits: deque[float] = deque(maxlen=100_000)
        self.trouble = ""  # the store's current problem in words; empty if there is none
        self.left = ""  # at the end: what is not in the store
        self.ended = False
        self.closed = False  # ended, with everything in the store
        self._queue: Queue[Any] = Queue(maxsize=4096)
        self._events: SimpleQueue[ev.Event | None] | None = None  # of the viewer, if there is one
        self._cause = ""
        self._pending: list[RecordedEvent] = []
        self._spilling = False
        self._control = control or Control()
        self._spill_file = spill_file(store.path, self.id)
        self.attempt = store.start_attempt(run, from_step, config)
        self.file = StoreFile(store)
        self.writer = RunWriter(self.file, row, self.attempt)
        self._exchange = Exchange(self.writer, self.board, self._control)
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

        def warn(text: str) -> None:
            if not self.ended:
                step = self.board.snapshot().step or from_step
                self.put(ev.NoteWritten(step=step, text=text, severity="warning"))

        if warning:
            warn(warning)
        for tracker in (row.config.get("record") or {}).get("trackers") or ():
            start_tracker(str(tracker), store.path, self.id, from_step or -1, warn)

    @property
    def path(self) -> Path:
        """The store's current path; it differs from the original if the file was replaced."""
        return self.store.path

    # -- on the engine's thread -----------------------------------------------------------------

    def put(self, event: ev.Event) -> None:
        """Queue the event for recording; blocks only while the queue is full."""
        self.board.apply(event)
        self._exchange.progress_at = time.time()
        if not isinstance(event, PROGRESS):
            self._queue.put((self._exchange.progress_at, event))

    @property
    def facts(self) -> "SimpleQueue[ev.Event | None]":
        """The events from the first access on, each after its commit; None marks the end."""
        if self._events is None:
            self._events = SimpleQueue()
        return self._events

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until everything put so far has been tried, and return whether it is stored."""
        return self._flush(None, timeout)

    def close(self, cause: str = "") -> bool:
        """Flush, end the attempt, and return whether everything is in the store.

        While events wait for the store, the thread goes on trying.
        """
        self._flush(cause)
        if self.closed:
            self._thread.join()
        return self.closed

    def _flush(self, ending: str | None, timeout: float | None = None) -> bool:
        if self.ended:
            return self.closed
        stored = Future[bool]()
        self._queue.put((ending, stored))
        with suppress(TimeoutError):
            return stored.result(timeout)
        return False

    # -- on the recorder's thread -----------------------------------------------------------

    def _run(self) -> None:
        next_poll = time.monotonic()
        while not self.closed:
            with suppress(Empty):
                self._guarded(partial(self._process, *self._queue.get(timeout=POLL_S)))
            if time.monotonic() >= next_poll:
                next_poll = time.monotonic() + POLL_S
                self._guarded(self._poll)
        self.file.close()

    def _guarded(self, act: Callable[[], None]) -> None:
        """Catch any error of the recorder: it must end neither this thread nor the run."""
        try:
            act()
        except Exception as error:
            self._set_trouble(f"the recorder failed: {type(error).__name__}: {error}")

    def _process(self, at: Any, event: Any) -> None:
        """Process an entry of the queue: an event with its time, or the end of a flush."""
        if isinstance(event, Future):
            try:
                if at is None:
                    self._commit()
                else:
                    self._end(at)
            finally:
                event.set_result(not self._pending and not self._spilling)
            return
        self._add(at, event)
        if isinstance(event, AT_ONCE):
            self._commit()

    def _add(self, at: float, event: ev.Event) -> None:
        self.seq += 1
        self._pending.append(RecordedEvent(self.seq, at, event))

    def _note(self, text: str) -> None:
        """Add a warning about the store to the events."""
        step = self._pending[-1].event.step if self._pending else self.board.snapshot().step
        self._add(time.time(), ev.NoteWritten(step=step, text=text, severity="warning"))

    def _commit(self) -> None:
        """Write pending events to the store, or to the run's file while the store fails."""
        if not self._pending:
            return
        if self._spilling:
            self._spill()
            return
        try:
            self.lock_waits.append(self.writer.write(self._pending, limit=LOCK_LIMIT_S))
            self.file.checkpoint_if_long()
        except Exception as error:  # events are kept, whatever the store's error
            self._set_aside(error)
            return
        self._deliver()
        self._set_trouble("")

    def _deliver(self) -> None:
        items, self._pending = self._pending, []
        for item in items:
            if self._events is not None:
                self._events.put(item.event)

    def _set_trouble(self, text: str) -> None:
        self.trouble = text
        self.board.warn(text)

    # -- when the store fails -------------------------------------------------------------------

    def _set_aside(self, error: Exception) -> None:
        """Spill what the store refuses, or all events until it can be written again."""
        self._spilling = spill.may_pass(error)
        if self._spilling:
            text = (
                f"the store {self.path} cannot be written ({error}); training continues, "
                f"events are kept in {self._spill_file} and imported later"
            )
            self._note(text)
        else:
            text = (
                f"{len(self._pending)} events were rejected by the store ({error}) and stay in "
                f"{self._spill_file}"
            )
        self._set_trouble(text)
        self._spill()

    def _spill(self) -> None:
        try:
            spill.append(self.path, self.id, self._pending)
        except OSError as error:
            self._set_trouble(
                f"neither {self.path} nor {self._spill_file} can be written "
                f"({error.strerror or error}; {free_space(self._spill_file)}); "
                f"{len(self._pending)} events wait in memory, and the run waits before its next "
                "step: free some disk space"
            )
            self._control.block(self.trouble)
            return
        self._control.block("")
        self._deliver()

    def _read_in(self) -> None:
        """Move spilled events into the store, if it can be written again."""
        with suppress(*spill.STORE_ERRORS):
            self.file.reopen()
            # the next commit starts the write-ahead log again, which may be all that a full disk
            # needs
            self.file.checkpoint()
            count, complaint = spill.read_in(self.writer)
            self._spilling = False
            self._control.block("")
            self._set_trouble("")
            self._note(f"the store can be written again; {count} spilled events were imported")
            if complaint:
                self._note(complaint)
            self._commit()

    # -- five times a second --------------------------------------------------------------------

    def _poll(self) -> None:
        """Write what waits for the end of its step or for the store; exchange with viewers."""
        if note := self.file.rescue():
            self._note(note)
        if not self.ended or self._spilling:
            self._commit()
        if self._spilling:
            self._read_in()
        elif self.ended:
            self._finish()
        if not self._spilling and not self.ended:
            with suppress(*spill.STORE_ERRORS):
                self._exchange.poll()

    def _end(self, cause: str) -> None:
        """End the attempt, in the store once that has all of its events."""
        if self.ended:
            return
        self.ended, self._cause = True, cause
        self._commit()
        if self._spilling:
            self._read_in()
        waiting = spilled(self.path, self.id)
        if waiting.file or self._pending:
            memory = f", {len(self._pending)} only in memory" if self._pending else ""
            self.left = f"run {self.name}: {waiting}{memory}"
        if not self._spilling:
            self._finish()
        if self._events is not None:
            self._events.put(None)

    def _finish(self) -> None:
        self.closed = True
        with suppress(*spill.STORE_ERRORS):
            self.store.end_attempt(self.key, self.attempt, self._cause)


def start_tracker(
    tracker: str, store: Path, run: str, after: int, warn: Callable[[str], None]
) -> None:
    """Start a tracker in a process that reads the store, so that it cannot delay or end the run.

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
        output = process.communicate()[1].decode(errors="replace").split("\n")
        if status := process.returncode:
            reason = next((line for line in reversed(output) if line.strip()), "")
            end = f"signal {-status}" if status < 0 else f"status {status}"
            warn(
                f"{tracker} ended with {end}{': ' if reason else ''}{reason.strip()}; "
                f"the run continues, and `grpo-tui export {run} --format {tracker} --out FOLDER` "
                "writes all of it"
            )

    threading.Thread(target=wait, name=f"tracker {tracker}", daemon=True).start()
