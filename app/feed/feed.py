"""Feed: where a shown run comes from; screens cannot tell which kind they show.

Facts are recorded events in their order, none lost; the board is the latest progress, looked at
as rarely as one likes. A live feed reads what the recorder of this process hands on after each
commit; a stored feed is in `app.feed.stored`.
"""

import time
from queue import Empty, SimpleQueue
from typing import Protocol

from app.feed.run_state import Asked, Head, Status
from experiments.board import Board
from experiments.values import BoardView
from grpo_engine import events as ev
from grpo_engine.control import Control

Fact = tuple[float | None, ev.Event]
NOTHING_MUTED: frozenset[str] = frozenset()


class Feed(Protocol):
    """A run as it comes in; every method returns at once."""

    run: int
    mark: str
    may_control: bool

    def head(self) -> Head:
        """What names the run."""

    def facts(self) -> list[Fact]:
        """What was recorded since the last call, each with its wall time where it is known."""

    def board(self) -> BoardView | None:
        """The latest progress; the same object as long as nothing changed."""

    def status(self) -> Status | None:
        """What is known of the run beyond its events: `lost`, or None."""

    def muted(self) -> frozenset[str]:
        """Alert rules muted for the run, by the store; the same object while it says the same."""

    def ask(self, verb: Asked) -> None:
        """Ask something of the run."""

    def pin(self, example_key: str) -> None:
        """Ask to follow one more prompt."""

    def close(self) -> None:
        """Let go of the run; the run itself goes on."""


class Recording(Protocol):
    """What a live feed needs of the recorder's handle."""

    key: int
    id: str
    name: str
    board: Board

    @property
    def facts(self) -> SimpleQueue[ev.Event | None]:
        """Events after their commit; None is the end."""


class LiveFeed:
    """A run whose engine works in this process."""

    mark = ""
    may_control = True

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
        """The names that the recorder gave."""
        return Head(id=self._handle.id, name=self._handle.name)

    def facts(self) -> list[Fact]:
        """Everything that is in the queue."""
        found: list[Fact] = []
        now = time.time()
        while True:
            try:
                event = self._queue.get_nowait()
            except Empty:
                return found
            if event is None:
                self.ended = True
            else:
                found.append((now, event))

    def board(self) -> BoardView | None:
        """The recorder's board."""
        return self._handle.board.snapshot()

    def status(self) -> Status | None:
        """A live run says all of it in events."""
        return None

    def muted(self) -> frozenset[str]:
        """What was muted before this process took the run up."""
        return self._muted

    def ask(self, verb: Asked) -> None:
        """Hand the request to the engine."""
        if verb:
            self._control.ask(verb)

    def pin(self, example_key: str) -> None:
        """Hand the request to the engine."""
        self._control.pin(example_key)

    def close(self) -> None:
        """Nothing to let go of: the recorder keeps the queue."""
