"""Session: the run on screen and its feed, folded into snapshots; uses no Textual."""

from dataclasses import replace

from grpo_tui.app.feed.feed import Feed
from grpo_tui.app.feed.run_state import RunState
from grpo_tui.app.feed.snapshot import Request, Snapshot


class Session:
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
        self.state.look(feed.board(), feed.head, feed.muted, feed.status)
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
