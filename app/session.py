"""Session: the run on screen, its feed folded into snapshots; knows no Textual."""

from app.feed import Feed
from app.run_state import Asked, RunState, Snapshot


class Session:
    """One shown run."""

    def __init__(self, feed: Feed, memory_limit_gb: float | None = None) -> None:
        self.feed = feed
        self.state = RunState(feed.head())
        self._memory_limit_gb = memory_limit_gb

    @property
    def run(self) -> int:
        """The database key of the run."""
        return self.feed.run

    def pull(self) -> Snapshot:
        """Take in what happened since the last call; the same object if nothing did."""
        for at, event in self.feed.facts():
            self.state.apply(event, at)
        self.state.look(self.feed.board())
        status = self.feed.status()
        if status is not None:
            self.state.set_status(status)
        return self.state.snapshot()

    def ask(self, verb: Asked) -> Snapshot:
        """Ask something of the run, and show at once that it was asked."""
        self.feed.ask(verb)
        self.state.ask(verb)
        return self.state.snapshot()

    def close(self) -> None:
        """Let go of the run; the run itself goes on."""
        self.feed.close()
