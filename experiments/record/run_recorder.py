"""One attempt at a run while it is recorded: pending events and failures."""

import time
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from queue import Queue, SimpleQueue
from typing import Any

from grpo_engine import events as ev
from grpo_engine.control import Control
from grpo_tui.experiments.board import Board
from grpo_tui.experiments.db.paths import run_folder, spill_file
from grpo_tui.experiments.db.spilled import free_space, spilled
from grpo_tui.experiments.record import spill
from grpo_tui.experiments.record.live import Heartbeat, LiveBoard, Requests
from grpo_tui.experiments.record.store_file import StoreFile
from grpo_tui.experiments.record.writer import PROGRESS, RecordedParts, RunWriter
from grpo_tui.experiments.values import RecordedEvent

SPILL_AFTER_S = 2.0
RETRY_S = 1.0
LATEST_S = 0.5
LOCK_LIMIT_S = 0.2
OF_A_STEP = (ev.GroupScored, ev.TokensScored, ev.PassFinished, ev.StepSkipped)
AT_ONCE = (
    ev.StepFinished, ev.RunStarted, ev.RunPaused, ev.RunResumed, ev.RunFinished, ev.RunFailed,
    ev.CheckpointSaved, ev.EvaluationFinished,
)  # fmt: skip


class RunRecorder:
    """One attempt at a run: the engine puts events, the recorder's thread writes them."""

    def __init__(
        self, file: StoreFile, queue: "Queue[tuple[RunRecorder | None, Any]]", run: int,
        control: Control, from_step: int, config: Any = None,
    ) -> None:  # fmt: skip
        self.file, self.store, self.key = file, file.store, run
        row = self.store.run_row(run)
        self.id: str = row.short
        self.name, self.seq = row.name, row.last_seq
        self.folder = run_folder(self.store.path, row.short)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.parts = RecordedParts(row.config)
        self.board = Board()
        self.lock_waits: deque[float] = deque(maxlen=100_000)
        self.trouble = ""  # the store's current problem in words; empty if there is none
        self.left = ""  # at the end: what is not in the store
        self.ended = False
        self.closed = False  # ended, with everything in the store
        self._queue = queue
        self._events: SimpleQueue[ev.Event | None] | None = None  # of the viewer, if there is one
        self._cause = ""
        self._pending: list[RecordedEvent] = []
        self._failing_since = 0.0
        self._spilling = False
        self._retried = 0.0
        self._control = control
        self._spill_file = spill_file(self.store.path, self.id)
        self.attempt = self.store.start_attempt(run, from_step, config)
        self.writer = RunWriter(file.connection, run, self.attempt, self.folder, self.parts)
        self.requests = Requests(self.writer, control)
        self.live = LiveBoard(self.writer, self.board)
        self.heart = Heartbeat(self.writer)

    # -- on the engine's thread -----------------------------------------------------------------

    def put(self, event: ev.Event) -> None:
        """Queue the event for recording; blocks only while the queue is full."""
        self.board.apply(event)
        self.heart.progress_at = time.time()
        if not isinstance(event, PROGRESS):
            self._queue.put((self, (self.heart.progress_at, event)))

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
        """Flush, end the attempt, and return whether everything is in the store."""
        return self._flush(cause)

    def _flush(self, ending: str | None, timeout: float | None = None) -> bool:
        stored = Future[bool]()
        self._queue.put((self, (ending, stored)))
        with suppress(TimeoutError):
            return stored.result(timeout)
        return False

    # -- on the recorder's thread -----------------------------------------------------------

    def process(self, entry: Any) -> None:
        """Process an entry of the queue: an event with its time, or the end of a flush."""
        at, event = entry
        if isinstance(event, Future):
            try:
                if at is None:
                    self._settle()
                else:
                    self.end(at)
            finally:
                event.set_result(not self._pending and not self._spilling)
            return
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
        self._add_note(text)
        self._commit()

    def _add_note(self, text: str) -> None:
        step = self._pending[-1].event.step if self._pending else self.board.snapshot().step
        self._add(time.time(), ev.NoteWritten(step=step, text=text, severity="warning"))

    def _add(self, at: float, event: ev.Event) -> None:
        self.seq += 1
        self._pending.append(RecordedEvent(self.seq, at, event))

    def _commit(self) -> None:
        """Write pending events to the store, or to the run's file if the store fails for long."""
        if not self._pending:
            return
        if self._spilling:
            self._spill()
            return
        try:
            self.writer.use(self.file.connection)
            self.lock_waits.append(self.writer.write(self._pending, limit=LOCK_LIMIT_S))
            self.file.checkpoint_if_long()
        except Exception as error:  # events are kept, whatever the store's error
            self._set_aside(error)
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
            if self._events is not None:
                self._events.put(item.event)

    def _set_trouble(self, text: str) -> None:
        self.trouble = text
        self.board.warn(text)

    # -- when the store fails -------------------------------------------------------------------

    def _set_aside(self, error: Exception) -> None:
        """Spill what the store refuses, or all events once it has failed for `SPILL_AFTER_S`."""
        if not spill.may_pass(error):
            self._set_trouble(
                f"{len(self._pending)} events were rejected by the store ({error}) and stay in "
                f"{self._spill_file}"
            )
            self._spill()
            return
        now = time.monotonic()
        self._failing_since = self._failing_since or now
        if now - self._failing_since >= SPILL_AFTER_S:
            self._spilling = True
            text = (
                f"the store {self.store.path} cannot be written ({error}); training continues, "
                f"events are kept in {self._spill_file} and imported later"
            )
            self._add_note(text)
            self._set_trouble(text)
            self._spill()

    def _spill(self) -> None:
        try:
            spill.append(self.store.path, self.id, self._pending)
        except OSError as error:
            self._set_trouble(
                f"neither {self.store.path} nor {self._spill_file} can be written "
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
            self.writer.use(self.file.connection)
            count, complaint = spill.read_in(self.writer, self.store.path, self.id)
            self._spilling = False
            self._failing_since = 0.0
            self._control.block("")
            self._set_trouble("")
            self.note(f"the store can be written again; {count} spilled events were imported")
            if complaint:
                self.note(complaint)

    # -- five times a second --------------------------------------------------------------------

    def poll(self) -> None:
        """Retry failed writes, poll requests, write the board for viewers."""
        if self._spilling:
            if self._pending:
                self._spill()
            if time.monotonic() - self._retried >= RETRY_S:
                self._read_in()
                self._retried = time.monotonic()
        elif self.ended:
            self._finish()
        elif self._pending and (self._failing_since or self._is_late()):
            self._commit()
        if self._spilling or self._failing_since or self.ended:
            return
        with suppress(*spill.STORE_ERRORS):
            self.requests.poll()
            self.live.poll()
            self.heart.poll()

    def _is_late(self) -> bool:
        """Return whether facts wait too long for their step to end: viewers do not see them yet."""
        return time.time() - self._pending[0].at > LATEST_S

    def end(self, cause: str) -> None:
        """End the attempt, in the store once that has all of its events."""
        if self.ended:
            return
        self.ended, self._cause = True, cause
        self._settle()
        if self._spilling:
            self._read_in()
        waiting = spilled(self.store.path, self.id)
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
        self.writer.close()
