"""Feeds that read the store, for runs of other processes, ended runs, and live ones.

A live feed gets events from this process's recorder after each commit. Earlier events, and those
that another process records afterwards, come from the store.
"""

import sys
import threading
import time
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

from grpo_engine import events as ev
from grpo_engine.control import Control
from grpo_tui.app.feed.feed import Feed, drained, head_of
from grpo_tui.app.feed.run_state import RunState
from grpo_tui.app.feed.snapshot import Head, Request, Snapshot, Status
from grpo_tui.experiments.errors import RunNotFoundError, StoreError, StoreReadOnlyError
from grpo_tui.experiments.values import BoardView, RunSummary, TimedEvent

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader
    from grpo_tui.experiments.record.recorder import Recorder
    from grpo_tui.experiments.store import ExperimentStore

POLL_S, QUIET_S, LEASE_S, LEASE_EVERY_S = 0.25, 1.0, 10.0, 4.0
PAGE, SLICE = 500, 1500  # events read, and events returned, at a time
# Statuses without an event, as shown.
GONE: dict[str, Status] = {"lost": "lost", "unknown": "lost", "aborted": "aborted"}


def snapshot_of(reader: "StoreReader", run: int, step: int) -> Snapshot:
    """A finished step as it was at its end: groups, passes and metrics."""
    from grpo_tui.experiments.recorded_events import events_of_step

    state = RunState(Head())
    for record in events_of_step(reader, run, step):
        state.apply(record.event, record.at or None)
    return replace(state.snapshot(), status="running", step=step, series={})


def request(path: Path, run: int, verb: str, argument: str = "") -> str:
    """Send a request to a run in another process; return why it failed, or an empty text."""
    from grpo_tui.experiments.reader import StoreReader
    from grpo_tui.experiments.store import ExperimentStore

    with ExperimentStore(path) as store, StoreReader(path) as reader:
        key = store.request(run, verb, argument=argument)
        while (reply := reader.control(key)).state == "asked":
            time.sleep(POLL_S)
    return "" if reply.state == "taken" else reply.message


class StoreFeed(Feed):
    """Reads one run on a thread of its own."""

    def __init__(
        self, path: Path, ref: str, *, may_control: bool = True, head: Head | None = None
    ) -> None:
        super().__init__(head or Head(name=ref))
        self.may_control = may_control
        self._path, self._ref = path, ref
        self._facts: SimpleQueue[TimedEvent] = SimpleQueue()
        self._board: BoardView | None = None
        self._stop = threading.Event()
        self.caught_up = threading.Event()
        self._thread = threading.Thread(target=self._work, name="store feed", daemon=True)
        self._begin()

    def _begin(self) -> None:
        self._thread.start()

    @property
    def catching_up(self) -> bool:
        """Whether earlier events are still being read, or are read and not yet returned."""
        return not self.caught_up.is_set() or not self._facts.empty()

    def facts(self) -> list[TimedEvent]:
        """Return the events read since the last call, a limited number at a time."""
        return list(islice(drained(self._facts), SLICE))

    def board(self) -> BoardView | None:
        """Return the board that the run's process wrote last."""
        return self._board

    def ask(self, verb: Request) -> None:
        """Store a request for the run's process, which polls for them."""
        if verb:
            self._request(verb)

    def pin(self, example_key: str) -> None:
        self._request("pin", example_key)

    def _request(self, verb: str, argument: str = "") -> None:
        def send() -> None:
            try:
                problem = request(self._path, self.run, verb, argument)
            except (StoreError, OSError) as error:
                problem = str(error)
            if problem:
                self._note(problem)

        threading.Thread(target=send, name="request", daemon=True).start()

    def close(self) -> None:
        """Stop; the thread ends by itself."""
        self._stop.set()

    # -- the thread -------------------------------------------------------------------------

    def _note(self, text: str, severity: ev.Severity = "warning") -> None:
        step = self._board.step if self._board is not None else 0
        self._facts.put((time.time(), ev.NoteWritten(step=step, text=text, severity=severity)))

    def _work(self) -> None:
        from grpo_tui.experiments.reader import StoreReader

        try:
            with StoreReader(self._path) as reader:
                self._follow(reader)
        except (StoreError, InterruptedError, OSError) as error:
            self._note(str(error), "error")
        finally:
            self.caught_up.set()

    @property
    def _is_elsewhere(self) -> bool:
        """Whether only another process can be training the run."""
        return True

    def _follow(self, reader: "StoreReader") -> None:
        summary = reader.resolve(self._ref)
        self.run, groups_from = summary.key, summary.step
        self.head = head_of(reader, summary)
        muted = self.muted = reader.muted_alerts(self.run)
        last = 0
        leased = checked = 0.0
        warned: set[str] = set()
        while not self._stop.is_set():
            now = time.monotonic()
            if now - checked > QUIET_S:  # before the facts, which are newer
                checked = now
                try:
                    summary = reader.resolve(summary.uid)
                except RunNotFoundError:
                    self.deleted = True
                    return
                self._check(reader, summary)
                if (
                    stored := reader.muted_alerts(self.run)
                ) != muted:  # changed in the store, not in this app
                    muted = self.muted = stored
            last = self._read_facts(reader, last, groups_from)
            for run in reader.damaged().keys() - warned:
                warned.add(run)
                self._note(reader.damaged()[run])
            self.caught_up.set()
            if summary.active and self._is_elsewhere:
                if now - leased > LEASE_EVERY_S:
                    leased = now
                    self._renew_lease()
                self._board = reader.board(self.run) or self._board
            self._stop.wait(POLL_S if summary.active else QUIET_S)

    def _check(self, reader: "StoreReader", summary: RunSummary) -> None:
        """Take changes by other processes that are not in events."""
        from grpo_tui.experiments.post_mortem import post_mortem

        if summary.name != self.head.name:
            self.head = replace(self.head, name=summary.name)
        status = GONE.get(summary.status) if self._is_elsewhere else None
        if status == "lost" != self.status:
            self.checkpoint = post_mortem(reader, self.run).checkpoint_step
        self.status = status

    @cached_property
    def _store(self) -> "ExperimentStore":
        from grpo_tui.experiments.store import ExperimentStore

        return ExperimentStore(self._path)

    def _renew_lease(self) -> None:
        """Ask the run's process to write its board for a while."""
        try:
            self._store.renew_lease(self.run, LEASE_S)
        except StoreReadOnlyError:
            pass  # The run is shown without its progress.
        except (StoreError, OSError) as error:
            self._note(f"progress is not shown: {error}")

    def _read_facts(
        self, reader: "StoreReader", last: int, groups_from: int, until: int = sys.maxsize
    ) -> int:
        """Read everything beyond `last`, with groups only from step `groups_from` on."""
        from grpo_tui.experiments.recorded_events import events_after

        while not self._stop.is_set() and (
            page := events_after(
                reader, self.run, last, limit=PAGE, groups_from=groups_from, tokens=False
            )
        ):
            for record in page:
                if record.seq > until:
                    return until
                self._facts.put((record.at or None, record.event))
                last = record.seq
        return last


class LiveFeed(StoreFeed):
    """The feed of a run whose engine is in this process, or was."""

    def __init__(self, recorder: "Recorder", control: Control) -> None:
        self._recorder, self._control, self._live = recorder, control, recorder.facts
        self.run = recorder.key
        head = Head(id=recorder.id, name=recorder.name)
        super().__init__(recorder.path, recorder.id, head=head)
        if not recorder.earlier:
            self.caught_up.set()

    def _begin(self) -> None:
        """The thread starts with the first call of `facts`; the app may close before that."""

    @property
    def _is_elsewhere(self) -> bool:
        return self._recorder.closed and self._live.empty()

    def facts(self) -> list[TimedEvent]:
        if self._thread.ident is None and not self._stop.is_set():
            self._thread.start()
        facts = super().facts()
        if self.catching_up:
            return facts
        return facts + [fact for fact in drained(self._live) if fact is not None]

    def board(self) -> BoardView | None:
        return self._board or self._recorder.board.view

    def ask(self, verb: Request) -> None:
        if self._is_elsewhere:
            super().ask(verb)
        elif verb:
            self._control.ask(verb)

    def pin(self, example_key: str) -> None:
        if self._is_elsewhere:
            super().pin(example_key)
        else:
            self._control.pin(example_key)

    def _read_facts(
        self, reader: "StoreReader", last: int, groups_from: int, until: int = sys.maxsize
    ) -> int:
        """Read events from before this process resumed the run, and from after it ended here."""
        recorder = self._recorder
        if not self.caught_up.is_set():
            super()._read_facts(reader, last, groups_from, recorder.earlier)
        elif self._is_elsewhere:
            return super()._read_facts(reader, max(last, recorder.seq), groups_from, until)
        return last
