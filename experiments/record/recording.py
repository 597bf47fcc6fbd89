"""One attempt at a run while it is recorded: pending events, failures, subscribers."""

import contextlib
import sqlite3
import threading
import time
from collections import deque
from pathlib import Path
from queue import Queue, SimpleQueue
from typing import Any

from grpo_engine import events as ev
from grpo_engine.control import Control
from grpo_tui.experiments.board import Board
from grpo_tui.experiments.db.paths import run_folder
from grpo_tui.experiments.db.spilled import room, spilled
from grpo_tui.experiments.db.texts import iso
from grpo_tui.experiments.errors import StoreError
from grpo_tui.experiments.record.heartbeat import Heartbeat
from grpo_tui.experiments.record.leftovers import drain, may_pass, recorded_parts, take_in_later
from grpo_tui.experiments.record.live import LiveBoard, Requests
from grpo_tui.experiments.record.rows import PROGRESS, Item
from grpo_tui.experiments.record.spill import Spill, taking_in
from grpo_tui.experiments.record.store_file import StoreFile
from grpo_tui.experiments.record.writer import RunWriter

SPILL_AFTER_S = 2.0
RETRY_S = 1.0
LATEST_S = 0.5
LOCK_LIMIT_S = 0.2
OF_A_STEP = (ev.GroupScored, ev.TokensScored, ev.PassFinished, ev.StepSkipped)
AT_ONCE = (
    ev.StepFinished, ev.RunStarted, ev.RunPaused, ev.RunResumed, ev.RunFinished, ev.RunFailed,
    ev.CheckpointSaved, ev.EvaluationFinished,
)  # fmt: skip


class RunHandle:
    """The engine side's handle to a run that is being recorded."""

    def __init__(
        self, recording: "Recording", queue: "Queue[tuple[Recording | None, Any]]"
    ) -> None:
        self._recording, self._queue = recording, queue
        self._facts: SimpleQueue[ev.Event | None] | None = None
        self.key, self.id, self.name = recording.run, recording.short, recording.name
        self.attempt = recording.attempt
        self.folder: Path = recording.folder
        self.board: Board = recording.board
        self.waits: deque[float] = deque(maxlen=10_000)

    def put(self, event: ev.Event) -> None:
        """Queue the event for recording; blocks only while the queue is full."""
        self.board.apply(event)
        if isinstance(event, PROGRESS):
            self._recording.progress_at = time.time()
            return
        start = time.perf_counter()
        self._queue.put((self._recording, (time.time(), event)))
        self.waits.append(time.perf_counter() - start)

    def subscribe(self) -> "SimpleQueue[ev.Event | None]":
        """Return a lossless queue of facts, each delivered after its commit; None marks the end."""
        queue: SimpleQueue[ev.Event | None] = SimpleQueue()
        self._recording.listeners.append(queue)
        return queue

    @property
    def facts(self) -> "SimpleQueue[ev.Event | None]":
        """The first subscription, created on first access."""
        if self._facts is None:
            self._facts = self.subscribe()
        return self._facts

    @property
    def trouble(self) -> str:
        """The store's current problem in words; empty if there is none."""
        return self._recording.trouble

    @property
    def left(self) -> str:
        """After `close`: what is not in the store yet, in words; empty if everything is."""
        return self._recording.left

    @property
    def lock_waits(self) -> "deque[float]":
        return self._recording.lock_waits

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until everything put so far has been tried, and return whether it is stored."""
        flushed = _Flush()
        self._queue.put((self._recording, flushed))
        return flushed.done.wait(timeout) and flushed.stored

    def close(self, cause: str = "") -> bool:
        """Flush, end the attempt, and return whether everything is in the store."""
        closing = _Flush(cause)
        self._queue.put((self._recording, closing))
        closing.done.wait()
        return closing.stored


class _Flush:
    """A marker in the queue: everything before it has been tried once it is reached."""

    def __init__(self, ending: str | None = None) -> None:
        self.ending = ending
        self.done = threading.Event()
        self.stored = False


class Recording:
    """One attempt as the recorder's thread sees it."""

    def __init__(self, file: StoreFile, run: int, control: Control) -> None:
        self.file, self.store, self.run = file, file.store, run
        row = self.store.run_row(run)
        self.short, self.name, self.seq = row.short, row.name, row.last_seq
        self.folder = run_folder(self.store.path, row.short)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.parts = recorded_parts(row.config)
        self.board = Board()
        self.listeners: list[SimpleQueue[ev.Event | None]] = []
        self.lock_waits: deque[float] = deque(maxlen=100_000)
        self.progress_at = 0.0
        self.trouble = ""
        self.left = ""  # at the end: what could not be written to the store
        self.ended = False
        self._progress_written = 0.0
        self._pending: list[Item] = []
        self._failing_since = 0.0
        self._retried = 0.0
        self._spill = Spill(self.store.path, row.short)
        self._spilling = False
        self._control = control

    def begin(self, attempt: int) -> None:
        self.attempt = attempt
        self.seq = self.store.run_row(self.run).last_seq
        self.writer = RunWriter(self.file.connection, self.run, attempt, self.folder, self.parts)
        self.requests = Requests(self.run, attempt, self._control)
        self.live = LiveBoard(self.run, self.board)
        self.heart = Heartbeat(self.store, self.run, attempt)
        self.heart.start()

    # -- on the recorder's thread -----------------------------------------------------------

    def take(self, entry: Any) -> None:
        """Process an entry of the queue: an event with its time, or a flush."""
        if isinstance(entry, _Flush):
            try:
                if entry.ending is None:
                    self._settle()
                else:
                    self.end(entry.ending)
                entry.stored = not self._pending and not self._spilling
            finally:
                entry.done.set()
            return
        at, event = entry
        self._add(at, event)
        if isinstance(event, AT_ONCE) or not any(
            isinstance(item.event, OF_A_STEP) for item in self._pending
        ):
            self._commit()

    def failed(self, error: Exception) -> None:
        """Report that the recorder itself failed; training continues."""
        self._set_trouble(f"the recorder failed: {type(error).__name__}: {error}")

    def note(self, text: str) -> None:
        """Record a warning about the store."""
        step = self._pending[-1].event.step if self._pending else self.board.snapshot().step
        self._add(time.time(), ev.NoteWritten(step=step, text=text, severity="warning"))
        self._commit()

    def _add(self, at: float, event: ev.Event) -> None:
        self.seq += 1
        self._pending.append(Item(self.seq, at, event))

    def _commit(self) -> None:
        if not self._pending:
            return
        if self._spilling:
            self._spill_pending()
            return
        try:
            self.writer.use(self.file.connection)
            self.lock_waits.append(self.writer.write(self._pending, limit=LOCK_LIMIT_S))
            self.file.checkpoint_if_long()
        except Exception as error:  # events are kept, whatever the store's error
            if not may_pass(error):
                self._set_aside(error)
                return
            now = time.monotonic()
            self._failing_since = self._failing_since or now
            if now - self._failing_since >= SPILL_AFTER_S:
                self._start_spilling(error)
            return
        self._failing_since = 0.0
        self._deliver()
        if self.trouble:
            self._set_trouble("")

    def _settle(self) -> None:
        """Write pending events, retrying for twice `SPILL_AFTER_S`."""
        deadline = time.monotonic() + 2 * SPILL_AFTER_S
        while self._pending and time.monotonic() < deadline:
            self._commit()
            time.sleep(0 if not self._pending else 0.05)

    def _deliver(self) -> None:
        items, self._pending = self._pending, []
        for item in items:
            self.requests.saw(item.event)
            for queue in self.listeners:
                queue.put(item.event)

    def _set_trouble(self, text: str) -> None:
        self.trouble = text
        self.board.warn(text)

    # -- when the store fails -------------------------------------------------------------------

    def _start_spilling(self, error: Exception) -> None:
        self._spilling = True
        text = (
            f"the store {self.store.path} cannot be written ({error}); training continues, "
            f"events are kept in {self._spill.path} and imported later"
        )
        step = self._pending[-1].event.step
        self._add(time.time(), ev.NoteWritten(step=step, text=text, severity="warning"))
        self._set_trouble(text)
        self._spill_pending()

    def _spill_pending(self) -> None:
        try:
            self._spill.append(self._pending)
        except OSError as error:
            count = len(self._pending)
            self._set_trouble(
                f"neither {self.store.path} nor {self._spill.path} can be written "
                f"({error.strerror or error}; {room(self._spill.path)}); {count} events wait in "
                "memory, and the run waits before its next step: free some disk space"
            )
            self._control.block(self.trouble)
            return
        self._control.block("")
        self._deliver()

    def _set_aside(self, error: Exception) -> None:
        """Write events that the store rejects permanently to a separate file, and continue."""
        Spill(self.store.path, f"{self.short}.refused").append(self._pending)
        self._set_trouble(f"{len(self._pending)} events were rejected by the store: {error}")
        self._deliver()

    def _take_in(self) -> None:
        """Move spilled events into the store; events already there are skipped."""
        with contextlib.suppress(sqlite3.Error, StoreError, OSError):
            self.file.reopen()
            # the next commit starts the write-ahead log again, which may be all that a full disk
            # needs
            self.file.checkpoint()
            self.writer.use(self.file.connection)
            with taking_in(self.store.path):
                count = drain(self._spill, self.writer)
            self._spilling = False
            self._failing_since = 0.0
            self._control.block("")
            self._set_trouble("")
            self.note(f"the store can be written again; {count} spilled events were imported")
            if text := self._spill.complaint():
                self.note(text)

    # -- five times a second --------------------------------------------------------------------

    def poll(self) -> None:
        """Retry failed writes, poll requests, write the board for viewers."""
        now = time.monotonic()
        if self._spilling:
            if self._pending:
                self._spill_pending()
            if now - self._retried >= RETRY_S:
                self._take_in()
                self._retried = time.monotonic()
            return
        if self._pending and (self._failing_since or self._is_late()):
            self._commit()
        if self._failing_since:
            return
        with contextlib.suppress(sqlite3.Error):
            conn = self.file.connection
            self.requests.poll(conn)
            self.live.poll(conn)
            self._write_progress(conn)

    def _is_late(self) -> bool:
        """Return whether facts wait too long for their step to end: viewers do not see them yet."""
        return time.time() - self._pending[0].at > LATEST_S

    def _write_progress(self, conn: sqlite3.Connection) -> None:
        if self.progress_at - self._progress_written < 2.0:
            return
        conn.execute(
            "UPDATE attempt SET progress_at = ? WHERE run_id = ? AND n = ?",
            (iso(self.progress_at), self.run, self.attempt),
        )
        self._progress_written = self.progress_at

    def end(self, cause: str) -> None:
        """End the attempt; what the store cannot take stays in the spill file."""
        if self.ended:
            return
        self.ended = True
        self._settle()
        if self._spilling:
            self._take_in()
        self.heart.stop()
        if self._spilling:  # its end is among the events that wait
            lost = f", {len(self._pending)} are lost" if self._pending else ""
            self.left = f"run {self.name}: {spilled(self.store.path, self.short)}{lost}"
            take_in_later(self.store.path, self.short, self.attempt, cause, RETRY_S)
        else:
            with contextlib.suppress(sqlite3.Error, StoreError):
                self.requests.finish(self.file.connection)
            with contextlib.suppress(Exception):
                self.store.end_attempt(self.run, self.attempt, cause)
        self.writer.close()
        for queue in self.listeners:
            queue.put(None)
