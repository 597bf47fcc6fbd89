"""Feed: the source of a run's data; screens do not know which kind they show.

Facts are recorded events in their order, none lost; the board is the latest progress and may be
polled at any rate. A live feed reads what this process's recorder delivers after each commit; a
stored feed is in `grpo_tui.app.feed.stored`.
"""

import time
from queue import Empty, SimpleQueue
from typing import Protocol

from grpo_engine import events as ev
from grpo_engine.control import Control
from grpo_tui.app.feed.snapshot import Asked, Head, Status
from grpo_tui.experiments.board import Board
from grpo_tui.experiments.values import BoardView

TimedEvent = tuple[float | None, ev.Event]
NOTHING_MUTED: frozenset[str] = frozenset()


class Feed(Protocol):
    """The data of a run as it arrives; every method returns at once."""

    run: int
    may_control: bool
    restarts: int
    """How often the feed has begun again; what it told before no longer holds."""

    @property
    def mark(self) -> str:
        """Say what is shown where it is not the run as it happens."""

    @property
    def catching_up(self) -> bool:
        """Return whether it is still reading towards the moment to show."""

    def head(self) -> Head:
        """Return the run's names and settings for the top of a screen."""

    def facts(self) -> list[TimedEvent]:
        """Return what was recorded since the last call, with wall times where known."""

    def board(self) -> BoardView | None:
        """Return the latest progress; the same object while nothing changed."""

    def status(self) -> Status | None:
        """Return a status that events cannot tell: `lost`, or None."""

    def muted(self) -> frozenset[str]:
        """Return the alert rules muted for the run; the same object while nothing changed."""

    def ask(self, verb: Asked) -> None:
        """Send a request to the run."""

    def pin(self, example_key: str) -> None:
        """Ask the run to follow one more prompt."""

    def close(self) -> None:
        """Detach from the run, which continues."""


class Recording(Protocol):
    """The part of the recorder's handle that a live feed uses."""

    key: int
    id: str
    name: str
    board: Board

    @property
    def facts(self) -> SimpleQueue[ev.Event | None]:
        """A queue of events after their commit; None marks the end."""


class LiveFeed:
    """The feed of a run whose engine is in this process."""

    mark = ""
    may_control = True
    catching_up = False
    restarts = 0

    def __init__(
        self, handle: Recording, control: Control, muted: frozenset[str] = NOTHING_MUTED
    ) -> None:
        self._handle = handle
        self._muted = muted
        self._control = control
        self._queue = handle.facts
        self.run = handle.key
        self.ended = False

    def head(self) -> Head:
        return Head(id=self._handle.id, name=self._handle.name)

    def facts(self) -> list[TimedEvent]:
        """Drain the queue."""
        timed_events: list[TimedEvent] = []
        now = time.time()
        while True:
            try:
                event = self._queue.get_nowait()
            except Empty:
                return timed_events
            if event is None:
                self.ended = True
            else:
                timed_events.append((now, event))

    def board(self) -> BoardView | None:
        return self._handle.board.snapshot()

    def status(self) -> Status | None:
        """Return None: events tell a live run's whole status."""
        return None

    def muted(self) -> frozenset[str]:
        """Return the rules that were muted before this process resumed the run."""
        return self._muted

    def ask(self, verb: Asked) -> None:
        if verb:
            self._control.ask(verb)

    def pin(self, example_key: str) -> None:
        self._control.pin(example_key)

    def close(self) -> None:
        """Do nothing: the recorder owns the queue."""


class StartingFeed:
    """The feed of a run that is starting, until it is in the store."""

    mark = ""
    may_control = catching_up = False
    restarts = run = 0

    def __init__(self, head: Head) -> None:
        self._head = head
        self._facts: list[TimedEvent] = []

    def fail(self, reason: str) -> None:
        """Say why there will be no run."""
        failed = ev.RunFailed(step=0, error="not started", message=reason)
        self._facts.append((time.time(), failed))

    def head(self) -> Head:
        return self._head

    def facts(self) -> list[TimedEvent]:
        """Return the failure, once."""
        timed_events, self._facts = self._facts, []
        return timed_events

    def board(self) -> BoardView | None:
        """Return None: nothing has begun."""
        return None

    def status(self) -> Status | None:
        """Return None: the run is loading until its failure says otherwise."""
        return None

    def muted(self) -> frozenset[str]:
        return NOTHING_MUTED

    def ask(self, verb: Asked) -> None:
        """Do nothing: there is no engine to ask."""

    def pin(self, example_key: str) -> None:
        """Do nothing: there is no engine to ask."""

    def close(self) -> None:
        """Do nothing: the run starts without a viewer too."""
