"""Feed: the source of a run's data, whichever kind it is.

Facts are recorded events in order, and none is lost. The board is the latest progress, polled at
any rate. The feeds are in `stored` and `replay`.
"""

from collections.abc import Iterator
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TypeVar

from grpo_tui.app.feed.run_state import RunState
from grpo_tui.app.feed.snapshot import Head, Request, Snapshot, Status
from grpo_tui.experiments.values import BoardView, RunSummary, TimedEvent

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader

T = TypeVar("T")


class Feed:
    """The data of a run as it arrives; every method returns at once. This one is empty."""

    run = 0
    may_control = False
    deleted = False  # the run is no longer in the store
    restarts = 0  # number of times that the feed began again; earlier facts no longer hold

    def __init__(self, head: Head) -> None:
        self.head = head
        self.muted: frozenset[str] = frozenset()  # alert rules
        self.status: Status | None = None  # lost or aborted: no event says so
        self.checkpoint: int | None = None  # the step from which a lost run can be resumed

    @property
    def mark(self) -> str:
        """A label for a feed that does not show the run as it happens."""
        return ""

    @property
    def catching_up(self) -> bool:
        """Whether earlier events are still being read."""
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
    """Yield the items of a queue until it is empty."""
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
        total_steps=run.total_steps or 0,
        config=reader.run(run.key).config,
    )


class Session:
    """The run on screen and its feed, folded into snapshots."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.state = RunState(feed.head)
        self.opened = False  # set once everything that was recorded earlier has been read
        self._restarts = feed.restarts
        # Shown while the feed catches up: the events that it reads are not happening now.
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
        catching_up = feed.catching_up  # read before the facts, which may arrive at any time
        for at, event in feed.facts():
            self.state.apply(event, at)
        self.opened = self.opened or not catching_up
        self.state.update(feed.board(), feed.head, feed.muted, feed.status, feed.checkpoint)
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
