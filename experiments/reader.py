"""StoreReader: plain sqlite3 for the command line, the first paint and hot reads."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from experiments import values as v
from experiments.values import BoardView
from experiments.waiting import ControlView, QueueItemView


class StoreReader:
    """Reads the store at `path`, one thread at a time; never migrates and never writes rows."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def close(self) -> None:
        """Let the file go."""

    def interrupt(self) -> None:
        """Stop the query that runs in another thread."""

    def changed(self) -> bool:
        """Whether another connection has committed since the last call."""
        raise NotImplementedError

    def resolve(self, ref: str) -> v.RunSummary:
        """Find the run of an id, unique prefix, name, `@last` or `@best`."""
        raise NotImplementedError

    def runs(
        self, filter: str = "", *, sort: str = "-created", columns: Sequence[str] = (),
        archived: bool = False, limit: int | None = None, metrics: Sequence[str] = (),
    ) -> tuple[v.RunSummary, ...]:  # fmt: skip
        """List runs; `metrics` are the keys to sum up, `columns` are in the column language."""
        raise NotImplementedError

    def run(self, run: int) -> v.RunDetail:
        """A run with its settings and attempts."""
        raise NotImplementedError

    def metric_keys(self, run: int) -> tuple[str, ...]:
        """The metrics a run has."""
        raise NotImplementedError

    def metric_series(self, run: int, key: str, *, after: int = -1) -> v.MetricSeries:
        """One metric over the steps beyond `after`."""
        raise NotImplementedError

    def metrics_at(self, run: int, step: int) -> dict[str, float]:
        """All metrics of one step."""
        raise NotImplementedError

    def steps(self, run: int, *, after: int = -1) -> tuple[v.StepView, ...]:
        """Finished steps beyond `after`."""
        raise NotImplementedError

    def passes(self, run: int, step: int) -> tuple[v.PassView, ...]:
        """The optimiser updates of a step."""
        raise NotImplementedError

    def facts(self, run: int, *, after: int = 0, limit: int = 500) -> tuple[v.Fact, ...]:
        """Recorded events beyond sequence number `after`, as the live feed shows them."""
        raise NotImplementedError

    def group_steps(self, run: int, origin: str = "train") -> tuple[int, ...]:
        """The steps that have groups of this origin."""
        raise NotImplementedError

    def groups(
        self, run: int, step: int, origin: str | None = None, *, rollouts: bool = True
    ) -> tuple[v.GroupView, ...]:
        """The groups of a step, with their rollouts unless they are not wanted."""
        raise NotImplementedError

    def group(self, group: int) -> v.GroupView:
        """One group with its rollouts."""
        raise NotImplementedError

    def tokens(self, run: int, group: int) -> v.TokenView | None:
        """The token numbers of a group; None where they were not recorded."""
        raise NotImplementedError

    def history(self, run: int, prompt_hash: str) -> tuple[v.GroupView, ...]:
        """The same prompt over the steps, oldest first."""
        raise NotImplementedError

    def pinned(self, run: int) -> tuple[v.PinnedPrompt, ...]:
        """The prompts that are followed through the run."""
        raise NotImplementedError

    def search(
        self, text: str, *, run: int | None = None, mode: str = "words", sort: str = "newest",
        limit: int = 50, before: int | None = None,
    ) -> Iterator[v.SearchHit]:  # fmt: skip
        """Stream rollouts that hold the text; `interrupt` stops it."""
        raise NotImplementedError

    def alerts(self, run: int) -> tuple[v.AlertView, ...]:
        """The alerts of a run, newest first."""
        raise NotImplementedError

    def evaluations(self, run: int, *, rows: bool = False) -> tuple[v.EvaluationView, ...]:
        """The held-out evaluations of a run."""
        raise NotImplementedError

    def checkpoints(self, run: int) -> tuple[v.CheckpointView, ...]:
        """The checkpoints a run saved."""
        raise NotImplementedError

    def board(self, run: int) -> BoardView | None:
        """The board as the run's process last wrote it for viewers."""
        raise NotImplementedError

    def post_mortem(self, run: int) -> v.PostMortem:
        """What is known of a run that ended without saying so."""
        raise NotImplementedError

    def control(self, request: int) -> ControlView:
        """What became of a request."""
        raise NotImplementedError

    def queue(self) -> tuple[QueueItemView, ...]:
        """The runs that wait for their turn."""
        raise NotImplementedError
