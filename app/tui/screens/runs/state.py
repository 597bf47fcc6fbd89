"""The state of Runs: the listed runs, their order, groups and marks, and what is read for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_engine.frozen import frozen
from grpo_engine.run_health import Health
from grpo_tui.app.text.numbers import clamped, value_text
from grpo_tui.app.text.run_columns import Outcome
from grpo_tui.experiments.errors import QueryError
from grpo_tui.experiments.values import (
    AlertView,
    MetricSeries,
    PostMortem,
    RunDetail,
    RunSummary,
    column_label,
)

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader

GROUPS = ("", "recipe", "task", "model", "sweep", "seed", "status")
MAX_RUNS = 5000  # in the table; a search finds the others
LONG = ("rewards.", "task.columns", "task.options")  # settings too long for a column
MAX_DIFFERING = 6  # settings of runs that are of no sweep; with more there is nothing to compare
COMPARED_RUNS = 500  # runs among which differing settings are looked for
METRICS = ("reward", "kl", "eval/accuracy", "eval/greedy/accuracy")


@frozen
class Preview:
    """One run at a glance."""

    detail: RunDetail
    changed: tuple[tuple[str, str], ...]
    series: tuple[MetricSeries, ...]
    alert: AlertView | None
    post_mortem: PostMortem | None
    health: Health


@dataclass(frozen=True, slots=True)
class TableRow:
    """A line of the table: a run, or a group's heading with the number of its runs.

    `key` identifies the group: sweeps may share a name.
    """

    run: RunSummary | None
    key: str | int | None = None
    group: str = ""
    count: int = 0
    folded: bool = False


@frozen
class RunsView:
    """The screen's state; every change returns a new one."""

    runs: tuple[RunSummary, ...] = ()
    loaded: bool = False
    cursor: int = 0
    marked: frozenset[int] = frozenset()
    filter: str = ""
    sort: str = "-created"
    archived: bool = False
    columns: tuple[str, ...] = ()  # expressions of the columns that the user has added
    axes: tuple[str, ...] = ()  # settings that differ among the listed runs
    group: str = ""
    folded: frozenset[str | int | None] = frozenset()
    now: float = 0.0
    outcomes: Mapping[int, Outcome] = field(default_factory=dict)  # of runs that were visible
    preview: Preview | None = None
    problem: str = ""
    queued: int = 0
    deleted: int = 0  # runs that can still be brought back
    more: bool = False  # whether the store has runs beyond those of the table
    starting: str = ""  # the name of a run that was launched and has not begun
    here: str = ""  # the run that this window trains

    @property
    def rows(self) -> tuple[TableRow, ...]:
        """The table's lines: runs, or groups of them under headings unless folded."""
        if not self.group:
            return tuple(map(TableRow, self.runs))
        rows = []
        for key, members in self._groups().items():
            folded = key in self.folded
            rows.append(TableRow(None, key, str(self._group_of(members[0])), len(members), folded))
            rows += [] if folded else map(TableRow, members)
        return tuple(rows)

    def _groups(self) -> dict[str | int | None, list[RunSummary]]:
        groups: dict[str | int | None, list[RunSummary]] = {}
        for run in self.runs:
            key = run.sweep_id if self.group == "sweep" else str(self._group_of(run))
            groups.setdefault(key, []).append(run)
        return groups

    def _group_of(self, run: RunSummary) -> Any:
        if self.group in GROUPS:
            value = getattr(run, self.group)
            return "–" if value in (None, "") else value
        return run.columns.get(column_label(self.group), "–")

    @property
    def row(self) -> TableRow | None:
        """The line under the cursor."""
        rows = self.rows
        return rows[min(self.cursor, len(rows) - 1)] if rows else None

    @property
    def selected(self) -> RunSummary | None:
        """The run under the cursor."""
        row = self.row
        return row.run if row else None

    @property
    def members(self) -> list[RunSummary]:
        """The runs of the group under the cursor."""
        row = self.row
        return [] if row is None or row.run else self._groups().get(row.key, [])

    @property
    def selection(self) -> tuple[RunSummary, ...]:
        """The marked runs, or else the one under the cursor."""
        marked = tuple(run for run in self.runs if run.key in self.marked)
        return marked or ((self.selected,) if self.selected else ())

    @property
    def marked_ids(self) -> tuple[str, ...]:
        """The ids of the marked runs, the oldest first."""
        marked = [run for run in self.runs if run.key in self.marked]
        return tuple(run.id for run in sorted(marked, key=lambda run: run.created_at))

    @property
    def is_empty(self) -> bool:
        """Whether the store lists no runs at all."""
        return self.loaded and not (self.runs or self.filter or self.problem)

    def on_run(self, *ids: str) -> "RunsView":
        """Move the cursor to the first of these runs that is in the table."""
        listed = {row.run.id: index for index, row in enumerate(self.rows) if row.run}
        cursor = clamped(self.cursor, len(self.rows))
        return replace(self, cursor=next((listed[i] for i in ids if i in listed), cursor))

    def moved(self, by: int) -> "RunsView":
        """Move the cursor."""
        return replace(self, cursor=clamped(self.cursor + by, len(self.rows)))

    def mark(self) -> "RunsView":
        """Mark or unmark the run under the cursor, or a whole group."""
        row = self.row
        if row is None:
            return self
        runs = [row.run] if row.run else self.members
        keys = frozenset(run.key for run in runs)
        marked = self.marked - keys if keys <= self.marked else self.marked | keys
        return replace(self, marked=marked)

    def mark_sweep(self) -> "RunsView":
        """Mark the runs of the selected run's sweep and no others, or unmark them."""
        sweep = self.selected.sweep_id if self.selected else None
        keys = frozenset(run.key for run in self.runs if sweep and run.sweep_id == sweep)
        return replace(self, marked=frozenset() if keys == self.marked else keys) if keys else self

    def toggle_fold(self) -> "RunsView":
        """Fold or unfold the group under the cursor."""
        row = self.row
        if row is None or row.run is not None:
            return self
        return replace(self, folded=self.folded ^ {row.key})


# -- reading ------------------------------------------------------------------------------------


def load_list(reader: "StoreReader", view: RunsView) -> dict[str, Any]:
    """Read what the table lists; returns the fields of the view that change."""
    group = () if view.group in GROUPS else (view.group,)

    def listed(axes: Sequence[str]) -> tuple[RunSummary, ...]:
        columns = (*view.columns, *(f"={path}" for path in axes), *group)
        return reader.runs(
            view.filter,
            sort=view.sort,
            columns=columns,
            archived=view.archived,
            metrics=METRICS,
            limit=MAX_RUNS + 1,
        )

    try:
        runs = listed(view.axes)
    except QueryError:  # perhaps a setting of runs that another process has deleted
        runs = listed(())
    axes = view.axes
    # the first rows do not wait for the axes
    changed = [run.key for run in runs[:MAX_RUNS]] != [run.key for run in view.runs]
    if view.loaded and (changed or not axes):
        axes = differing_settings(reader, runs[:COMPARED_RUNS])
        runs = listed(axes) if axes != view.axes else runs
    return {
        "runs": runs[:MAX_RUNS],
        "more": len(runs) > MAX_RUNS,
        "axes": axes,
        "queued": sum(item.state == "queued" for item in reader.queue()),
        "deleted": reader.deleted(),
    }


def read_table(store: Path, runs: Sequence[RunSummary]) -> list[dict[str, Any]]:
    """Read the health of the listed runs, and return them as rows of a file."""
    from grpo_tui.experiments.export.rows import run_row
    from grpo_tui.experiments.reader import StoreReader
    from grpo_tui.experiments.run_health import healths

    with StoreReader(store) as reader:
        states = healths(reader, runs)
    return [
        run_row(run) | {"health": states[run.key].label, "health_reason": states[run.key].reason}
        for run in runs
    ]


def differing_settings(reader: "StoreReader", runs: Sequence[RunSummary]) -> tuple[str, ...]:
    """The settings that differ within a sweep, and those of the other runs if they are few."""
    axes: dict[str, None] = {}
    for sweep, settings in reader.differing_settings(run.key for run in runs).items():
        paths = [path for path in settings if path != "name" and not path.startswith("record.")]
        if sweep is None:
            paths = [path for path in paths if not path.startswith(LONG)]
        if sweep is not None or len(paths) <= MAX_DIFFERING:
            axes |= dict.fromkeys(paths)
    return tuple(axes)


def load_preview(reader: "StoreReader", run: RunSummary) -> Preview:
    """Curves, changed settings, the last alert; for a lost run, what is known of its end."""
    # pydantic takes as long to load as the screen's first frame takes to draw
    from grpo_engine.config.parse import changed
    from grpo_tui.experiments.post_mortem import post_mortem
    from grpo_tui.experiments.run_health import healths

    detail = reader.run(run.key)
    keys = set(reader.metric_keys(run.key))
    return Preview(
        detail=detail,
        changed=tuple(
            (path, ", ".join(map(str, value)) if isinstance(value, list) else value_text(value))
            for path, value in changed(detail.settings).items()
            if value is not None and path != "name"
        ),
        series=tuple(reader.metric_series(run.key, key) for key in METRICS if key in keys),
        alert=next((alert for alert in reader.alerts(run.key) if not alert.muted), None),
        post_mortem=post_mortem(reader, run.key) if run.status in ("lost", "failed") else None,
        health=healths(reader, [run])[run.key],
    )
