"""What the Runs screen shows: the runs with their order, groups and marks, and the cursor."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from grpo_tui.app.tui.screens.runs.load import Preview
from grpo_tui.experiments.values import RunSummary, column_label

GROUPS = ("", "recipe", "task", "model", "sweep", "seed", "status")


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table: a run, or a group's heading with the number of its runs.

    `key` identifies the group: sweeps may share a name.
    """

    run: RunSummary | None
    key: str | int | None = None
    group: str = ""
    count: int = 0
    folded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The screen's state; every change returns a new one."""

    runs: tuple[RunSummary, ...] = ()
    loaded: bool = False
    cursor: int = 0
    marks: frozenset[int] = frozenset()
    baseline: int = 0
    filter: str = ""
    sort: str = "-created"
    running: bool = False
    archived: bool = False
    columns: tuple[str, ...] = ()
    group: str = ""
    folded: frozenset[str | int | None] = frozenset()
    sparks: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    preview: Preview | None = None
    problem: str = ""
    waiting: int = 0
    more: bool = False  # whether the store has runs beyond those of the table

    @property
    def rows(self) -> tuple[Row, ...]:
        """The table's lines: the baseline on top, then groups, unless folded, under headings."""
        runs = [run for run in self.runs if not self.running or run.active]
        top = [Row(run) for run in runs if run.key == self.baseline]
        rest = [run for run in runs if run.key != self.baseline]
        if not self.group:
            return (*top, *(Row(run) for run in rest))
        rows = top
        for key, members in self._groups(rest).items():
            closed = key in self.folded
            rows.append(Row(None, key, str(self._group_of(members[0])), len(members), closed))
            rows += [] if closed else [Row(run) for run in members]
        return tuple(rows)

    def _groups(self, runs: list[RunSummary]) -> dict[str | int | None, list[RunSummary]]:
        found: dict[str | int | None, list[RunSummary]] = {}
        for run in runs:
            key = run.sweep_id if self.group == "sweep" else str(self._group_of(run))
            found.setdefault(key, []).append(run)
        return found

    def _group_of(self, run: RunSummary) -> Any:
        if self.group in GROUPS:
            value = getattr(run, self.group)
            return "–" if value in (None, "") else value
        return run.columns.get(column_label(self.group), "–")

    @property
    def row(self) -> Row | None:
        """The line under the cursor."""
        rows = self.rows
        return rows[min(self.cursor, len(rows) - 1)] if rows else None

    @property
    def chosen(self) -> RunSummary | None:
        """The run under the cursor."""
        row = self.row
        return row.run if row else None

    @property
    def picked(self) -> tuple[RunSummary, ...]:
        """The marked runs, or else the one under the cursor."""
        marked = tuple(run for run in self.runs if run.key in self.marks)
        if marked:
            return marked
        return (self.chosen,) if self.chosen else ()

    @property
    def pinned(self) -> RunSummary | None:
        """The baseline."""
        return next((run for run in self.runs if run.key == self.baseline), None)

    @property
    def empty(self) -> bool:
        """Whether the store holds no runs at all."""
        return self.loaded and not self.runs and not (self.filter or self.running or self.problem)

    def with_runs(self, runs: tuple[RunSummary, ...]) -> "View":
        """Use reloaded rows; the cursor stays on its run."""
        chosen = self.chosen
        view = replace(self, runs=runs, loaded=True, problem="")
        return view.on_run(chosen.key) if chosen is not None else view.moved(0)

    def on_run(self, key: int) -> "View":
        """Move the cursor to a run, if it is in the table."""
        for place, row in enumerate(self.rows):
            if row.run is not None and row.run.key == key:
                return replace(self, cursor=place)
        return self.moved(0)

    def moved(self, by: int) -> "View":
        """Move the cursor."""
        last = max(0, len(self.rows) - 1)
        return replace(self, cursor=max(0, min(last, self.cursor + by)))

    def marked(self) -> "View":
        """Mark or unmark the run under the cursor, or a whole group, then move down."""
        row = self.row
        if row is None:
            return self
        runs = [row.run] if row.run else self._groups(list(self.runs)).get(row.key, [])
        return self.toggle_marks([run.key for run in runs]).moved(1)

    def mark_sweep(self) -> "View":
        """Mark the runs of the chosen run's sweep and no others, or unmark them."""
        sweep = self.chosen.sweep_id if self.chosen else None
        keys = frozenset(run.key for run in self.runs if sweep and run.sweep_id == sweep)
        return replace(self, marks=frozenset() if keys == self.marks else keys) if keys else self

    def toggle_marks(self, keys: Sequence[int]) -> "View":
        """Mark these runs, or unmark them if all are marked."""
        chosen = frozenset(keys)
        marks = self.marks - chosen if chosen <= self.marks else self.marks | chosen
        return replace(self, marks=marks)

    def toggled(self) -> "View":
        """Fold or unfold the group under the cursor."""
        row = self.row
        if row is None or row.run is not None:
            return self
        return replace(self, folded=self.folded ^ {row.key})

    def sorted_by(self, key: str) -> "View":
        """Sort by a key, or reverse the order if it is the current key."""
        down = self.sort == f"-{key}"
        return replace(self, sort=key if down else f"-{key}")
