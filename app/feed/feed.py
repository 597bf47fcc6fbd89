"""Feed: the source of a run's data; screens do not know which kind they show.

Facts are recorded events in their order, none lost; the board is the latest progress and may be
polled at any rate. The feeds are in `stored` and `replay`.
"""

from collections.abc import Iterator
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TypeVar

from grpo_engine import events as ev
from grpo_tui.app.feed.run_state import RunState
from grpo_tui.app.feed.snapshot import Head, Request, Snapshot, Status
from grpo_tui.experiments.values import BoardView, RunSummary

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader

TimedEvent = tuple[float | None, ev.Event]
T = TypeVar("T")


class Feed:
    """The data of a run as it arrives; every method returns at once. Here nothing arrives."""

    run = 0
    may_control = False
    deleted = False  # whether it is no longer in the store
    restarts = 0  # how often it has begun again: what it told before no longer holds

    def __init__(self, head: Head) -> None:
        self.head = head  # the run's names and settings
        self.muted: frozenset[str] = frozenset()  # alert rules
        self.status: Status | None = None  # `lost` and `aborted`, which events cannot tell
        self.checkpoint: int | None = None  # the step that a lost run can be resumed from

    @property
    def mark(self) -> str:
        """Say what is shown where it is not the run as it happens."""
        return ""

    @property
    def catching_up(self) -> bool:
        """Return whether it is still reading towards the moment to show."""
        return False

    def facts(self) -> list[TimedEvent]:
        """Return what was recorded since the last call, with wall times where known."""
        return []

    def board(self) -> BoardView | None:
        """Return the latest progress; the same object while nothing changed."""
        return None

    def ask(self, verb: Request) -> None:
        """Send a request to the run."""

    def pin(self, example_key: str) -> None:
        """Ask the run to follow one more prompt."""

    def close(self) -> None:
        """Detach from the run, which continues."""


def drained(queue: "SimpleQueue[T]") -> Iterator[T]:
    """What is in a queue now."""
    while True:
        try:
            yield queue.get_nowait()
        except Empty:
            return


def head_of(reader: "StoreReader", run: RunSummary) -> Head:
    """The names and settings of a stored run."""
    return Head(
        id=run.id,
        name=run.name,
        model=run.model,
        recipe=run.recipe,
        total_steps=run.total_steps,
        config=reader.run(run.key).config,
    )


class Session:
    """The run on screen and its feed, folded into snapshots."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.state = RunState(feed.head)
        self.opened = False  # whether everything that was recorded before has been read once
        self._restarts = feed.restarts
        # while the feed reads towards another moment; what it reads is not what happens
        reading = replace(self.state.snapshot(), reading=True)
        self._snapshot: Snapshot | None = reading if feed.catching_up else None

    @property
    def run(self) -> int:
        """The database key of the run."""
        return self.feed.run

    def pull(self) -> Snapshot:
        """Apply what arrived since the last call; return the same object if nothing did."""
        feed = self.feed
        if feed.restarts != self._restarts:
            self._restarts, self._snapshot = feed.restarts, self.state.snapshot()
            self.state = RunState(feed.head)
        catching_up = feed.catching_up  # asked first: a fact may arrive at any time
        for at, event in feed.facts():
            self.state.apply(event, at)
        self.opened = self.opened or not catching_up
        self.state.look(feed.board(), feed.head, feed.muted, feed.status, feed.checkpoint)
        if self._snapshot is not None and catching_up:
            return self._snapshot
        self._snapshot = None
        return self.state.snapshot()

    def ask(self, verb: Request) -> Snapshot:
        """Send a request to the run, and show it at once."""
        self.feed.ask(verb)
        self.state.ask(verb)
        return self.state.snapshot()

    def mute(self, rule: str, muted: bool) -> None:
        """Show at once that an alert rule of this run is muted or unmuted."""
        rules = self.feed.muted
        self.feed.muted = rules | {rule} if muted else rules - {rule}

    def close(self) -> None:
        """Detach from the run, which continues."""
        self.feed.close()
