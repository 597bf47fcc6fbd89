"""Queries on runs: list them, describe one, resolve a name to one."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from sqlalchemy import ColumnElement, String, func, or_, select, type_coerce

from grpo_engine.errors import nearest, quoted
from grpo_engine.events import ModelLoaded
from grpo_engine.metrics import spec
from grpo_tui.experiments import values as v
from grpo_tui.experiments.db.configs import flat
from grpo_tui.experiments.db.paths import run_folder
from grpo_tui.experiments.db.spilled import Spilled, runs_waiting, spilled
from grpo_tui.experiments.db.tables import (
    ATTEMPT,
    EVENT,
    METRIC_KEY,
    METRIC_SUMMARY,
    RUN,
    RUN_PARAM,
    RUN_TAG,
    SWEEP,
)
from grpo_tui.experiments.errors import RunActiveError, RunNotFoundError
from grpo_tui.experiments.read.columns import FIELDS, Column, Known, parse_column, parse_columns
from grpo_tui.experiments.read.connection import (
    DELETED_SCHEMA,
    Reading,
    among,
    as_view,
    no_collection,
)
from grpo_tui.experiments.read.filters import compile_filter
from grpo_tui.experiments.read.status import Derived, LifeSigns, derive
from grpo_tui.experiments.starts import begun_from

DEFAULT_METRICS = (
    "reward", "kl", "clip_ratio/region_mean", "tokens_per_second", "completions/mean_length",
    "entropy", "eval/accuracy", "eval/greedy/accuracy",
)  # fmt: skip
MOST_ANCESTORS = 100

PARENT = RUN.alias("parent")
_LATER = ATTEMPT.alias("later")
IS_LAST = ATTEMPT.c.id == (
    select(_LATER.c.id)
    .where(_LATER.c.run_id == RUN.c.id)
    .order_by(_LATER.c.n.desc())
    .limit(1)
    .scalar_subquery()
)


class LazyMetrics(Mapping[str, v.MetricSummary]):
    """The metrics of a run as rows, converted when read: a list has ten thousand runs."""

    __slots__ = ("_rows",)

    def __init__(self, rows: Mapping[str, Any]) -> None:
        self._rows = rows

    def __getitem__(self, key: str) -> v.MetricSummary:
        return as_view(v.MetricSummary, self._rows[key], key=key, direction=spec(key).direction)

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return repr(dict(self))


class RunQuestions(Reading):
    def runs(
        self, filter: str = "", *, sort: str = "-created", columns: Sequence[str] | str = (),
        archived: bool = False, limit: int | None = None,
        metrics: Sequence[str] = DEFAULT_METRICS, keys: Sequence[int] | None = None,
    ) -> tuple[v.RunSummary, ...]:  # fmt: skip
        """List runs; `metrics` are the keys to summarise, `columns` are in the column language."""
        known = self.known() if filter or columns or sort.lstrip("-") not in FIELDS else _NOTHING
        extra = parse_columns(columns, known)
        query = (
            self._select(
                v.RunSummary, RUN, *(column.shown.label(f"{n}") for n, column in enumerate(extra)),
                ATTEMPT.c.host, ATTEMPT.c.heartbeat, ATTEMPT.c.n.label("attempts"), id="short",
            )
            .outerjoin_from(RUN, ATTEMPT, IS_LAST)
            .where(self._not_deleted(), compile_filter(filter, known))
            .order_by(*_order(sort, known))
            .limit(limit)
        )  # fmt: skip
        if not archived:
            query = query.where(RUN.c.archived == 0)
        if keys is not None:
            query = query.where(RUN.c.id.in_(keys))
        waiting = self.waiting()
        statuses = self._derive_active(waiting)
        with no_collection():
            return self._summaries(self._all(query), extra, statuses, waiting, metrics)

    def waiting(self) -> dict[int, Spilled]:
        """Return by run which events are not in the store yet."""
        files = {short: spilled(self.path, short) for short in runs_waiting(self.path)}
        query = select(RUN.c.id, RUN.c.short).where(RUN.c.short.in_(files), self._not_deleted())
        return {run: files[short] for run, short in self._all(query) if files[short].events}

    def known(self) -> Known:
        """Return the names of settings and metrics in the store."""
        paths = self._column(select(RUN_PARAM.c.path).distinct())
        return Known(frozenset(paths), frozenset(self._column(select(METRIC_KEY.c.name))))

    def run(self, run: int) -> v.RunDetail:
        found = self.runs(archived=True, keys=[run], metrics=self._keys_of(run))
        row = self._first(select(RUN.c.config, RUN.c.versions).where(RUN.c.id == run))
        if not found or row is None:
            raise RunNotFoundError(f"run {run} is no longer in the store")
        settled = self._settled(run)
        return v.RunDetail(
            summary=found[0],
            config=row.config,
            settings=flat(row.config) | settled,
            settled=settled,
            versions=row.versions,
            attempts=self.attempts(run),
            folder=str(run_folder(self.path, found[0].id)),
            ancestry=self.ancestry(run),
        )

    def _settled(self, run: int) -> dict[str, Any]:
        event = self._value(
            select(EVENT.c.payload)
            .where(EVENT.c.run_id == run, EVENT.c.kind == "ModelLoaded", EVENT.c.hidden == 0)
            .order_by(EVENT.c.seq.desc())
            .limit(1)
        )
        return dict(event.settled) if isinstance(event, ModelLoaded) else {}

    def ancestry(self, run: int) -> tuple[v.Ancestor, ...]:
        """Return the runs that a run began from, its parent first."""
        found: dict[int, v.Ancestor] = {}
        while len(found) < MOST_ANCESTORS:
            row = self._first(
                select(PARENT.c.id, PARENT.c.short, PARENT.c.name)
                .join_from(RUN, PARENT, PARENT.c.id == RUN.c.parent_id)
                .where(RUN.c.id == run, self._not_deleted(PARENT))
            )
            if row is None or row.id in found:  # only a damaged store has a circle
                break
            step = begun_from(self.settings(run))
            run = row.id
            found[run] = v.Ancestor(id=row.short, name=row.name, step=step)
        return tuple(found.values())

    def settings(self, run: int, *, in_force: bool = False) -> dict[str, Any]:
        """Return a run's settings by path, on request with the values that the recipe sets."""
        value: ColumnElement[Any] = RUN_PARAM.c.value
        if in_force:
            stored = type_coerce(value, String)
            by_recipe = func.in_force(RUN.c.config, RUN_PARAM.c.path)
            value = type_coerce(
                func.coalesce(func.nullif(stored, "null"), by_recipe, stored), value.type
            )
        query = select(RUN_PARAM.c.path, value).join_from(RUN_PARAM, RUN).where(RUN.c.id == run)
        return self._dict(query)

    def attempts(self, run: int) -> tuple[v.AttemptView, ...]:
        """Return the attempts at a run, oldest first."""
        query = self._select(v.AttemptView, ATTEMPT).where(ATTEMPT.c.run_id == run)
        return self._views(v.AttemptView, query.order_by(ATTEMPT.c.n))

    # -- resolving names --------------------------------------------------------------------

    def resumable(self, ref: str) -> v.RunDetail:
        """Find a run by its name or id; raise if it is still in progress."""
        found = self.run(self.resolve(ref).key)
        if found.summary.active:
            name = found.summary.name
            raise RunActiveError(
                f"run {name} is {found.summary.status}: `grpo-tui stop {name}` first"
            )
        return found

    def resolve(self, ref: str) -> v.RunSummary:
        """Find a run by id, name, unique prefix of either, `@last` or `@best`."""
        if ref.startswith("@"):
            return self._special(ref)
        for condition in (or_(RUN.c.short == ref, RUN.c.uid == ref), RUN.c.name == ref):
            keys = self._column(select(RUN.c.id).where(condition, self._not_deleted()))
            if len(keys) == 1:
                return self._summary(keys[0])
        named = select(RUN.c.id, RUN.c.short, RUN.c.uid, RUN.c.name)
        rows = self._all(named.where(self._not_deleted()))
        found = {
            row.id: f"{row.short} ({row.name})"
            for row in rows
            if ref and any(name.startswith(ref) for name in row[1:])
        }
        if len(found) == 1:
            return self._summary(*found)
        if found:
            some = ", ".join(list(found.values())[:5])
            raise RunNotFoundError(
                f"{quoted(ref)} could be {len(found)} runs: {some}; type more of it"
            )
        if not rows:
            raise RunNotFoundError(f"no run is called {quoted(ref)}: {self.path} holds no runs yet")
        names = [name for row in rows for name in (row.short, row.name)]
        raise RunNotFoundError(
            f"no run is called {quoted(ref)} in {self.path}{nearest(ref, names)}; "
            "`grpo-tui runs --all` lists them"
        )

    def _special(self, ref: str) -> v.RunSummary:
        if ref not in ("@last", "@best"):
            raise RunNotFoundError(f"{quoted(ref)} is no run; there are @last and @best")
        newest = select(RUN.c.id, RUN.c.task).where(self._not_deleted())
        last = self._first(newest.order_by(RUN.c.created_at.desc(), RUN.c.id.desc()).limit(1))
        if last is None:
            raise RunNotFoundError(f"{ref} is no run yet: {self.path} holds none")
        best = self._best(last.task) if ref == "@best" else None
        return self._summary(last.id if best is None else best)

    def _best(self, task: str) -> int | None:
        """Return the best run of a task by held-out accuracy, else by reward."""
        highest = METRIC_SUMMARY.c.max
        for key in ("eval/accuracy", "eval/greedy/accuracy", "reward"):
            best: int | None = self._value(
                select(RUN.c.id)
                .join_from(METRIC_SUMMARY, RUN)
                .join(METRIC_KEY, METRIC_KEY.c.id == METRIC_SUMMARY.c.key_id)
                .where(METRIC_KEY.c.name == key, RUN.c.task == task, highest.is_not(None))
                .where(self._not_deleted())
                .order_by(highest.desc(), RUN.c.id.desc())
                .limit(1)
            )
            if best is not None:
                return best
        return None

    def _summary(self, run: int) -> v.RunSummary:
        return self.runs(archived=True, keys=[run])[0]

    def deleted(self) -> tuple[str, ...]:
        """Return the names of the runs that are deleted and can be brought back, newest first."""
        if self.schema < DELETED_SCHEMA:
            return ()
        hidden = select(RUN.c.name).where(RUN.c.deleted_at.is_not(None), RUN.c.purging == 0)
        return tuple(self._column(hidden.order_by(RUN.c.deleted_at.desc())))

    # -- rows to values -------------------------------------------------------------------------

    def _derive_active(self, waiting: Mapping[int, Spilled]) -> dict[int, Derived]:
        """Derive the true status of each run that is stored as active, or whose end waits."""
        rows = self._all(
            self._select(
                LifeSigns, ATTEMPT, RUN.c.id, RUN.c.status, RUN.c.elapsed, RUN.c.step
            )
            .join_from(RUN, ATTEMPT, IS_LAST)
            .where(RUN.c.status.in_(("running", "paused")))
        )  # fmt: skip
        found = {
            row.id: derive(
                row.status, as_view(LifeSigns, row), row.elapsed / row.step if row.step else 0.0
            )
            for row in rows
        }
        found |= {run: (one.status, None) for run, one in waiting.items() if one.status}
        self._file.create_function(
            "derived", 2, lambda run, status: found.get(run, (status, None))[0]
        )
        return found

    def _summaries(
        self, rows: Sequence[Any], columns: Sequence[Column],
        statuses: Mapping[int, Derived], waiting: Mapping[int, Spilled], metrics: Sequence[str],
    ) -> tuple[v.RunSummary, ...]:  # fmt: skip
        keys, labels = [row.key for row in rows], [column.label for column in columns]
        tags = self._tags(keys)
        summaries = self._metrics(keys, metrics)
        parents = self._dict(select(RUN.c.id, PARENT.c.short).join_from(
            RUN, PARENT, PARENT.c.id == RUN.c.parent_id
        ).where(self._not_deleted(PARENT)))  # fmt: skip
        sweeps = {}
        if self.schema >= 3:
            sweeps = self._dict(select(RUN.c.id, SWEEP.c.name).join_from(RUN, SWEEP))
        found = []
        for row in rows:
            status, since = statuses.get(row.key, (row.status, None))
            spill = waiting.get(row.key)
            found.append(
                as_view(
                    v.RunSummary, row, status=status, status_since=since,
                    waiting=str(spill or ""), step=max(row.step, spill.step if spill else 0),
                    attempts=row.attempts or 0, host=row.host or "", tags=tags.get(row.key, ()),
                    parent=parents.get(row.key), sweep=sweeps.get(row.key),
                    metrics=LazyMetrics(summaries[row.key]),
                    columns=dict(zip(labels, row, strict=False)) if labels else NO_COLUMNS,
                )
            )  # fmt: skip
        return tuple(found)

    def _tags(self, runs: Sequence[int]) -> dict[int, tuple[str, ...]]:
        found: dict[int, tuple[str, ...]] = {}
        query = select(RUN_TAG.c.run_id, RUN_TAG.c.tag).where(among(RUN_TAG.c.run_id, runs))
        for run, tag in self._all(query):
            found[run] = (*found.get(run, ()), tag)
        return found

    def _keys_of(self, run: int) -> list[str]:
        return self._column(
            select(METRIC_KEY.c.name)
            .join_from(METRIC_SUMMARY, METRIC_KEY)
            .where(METRIC_SUMMARY.c.run_id == run)
        )

    def _metrics(self, runs: Sequence[int], names: Sequence[str]) -> dict[int, dict[str, Any]]:
        """Return the summaries of runs by the metric's name."""
        keys = self._dict(
            select(METRIC_KEY.c.id, METRIC_KEY.c.name).where(METRIC_KEY.c.name.in_(names))
        )
        columns = METRIC_SUMMARY.c
        rows = self._all(
            self._select(v.MetricSummary, METRIC_SUMMARY, columns.run_id, columns.key_id).where(
                among(columns.run_id, runs), columns.key_id.in_(keys)
            )
        )
        found: dict[int, dict[str, Any]] = {run: {} for run in runs}
        for row in rows:
            found[row[0]][keys[row[1]]] = row
        return found


_NOTHING = Known(frozenset(), frozenset())
NO_COLUMNS: Mapping[str, Any] = MappingProxyType({})


def _order(sort: str, known: Known) -> list[ColumnElement[Any]]:
    """Return the order of a sort key; `-` means descending, runs without the value come last."""
    column = parse_column(sort.removeprefix("-"), known)
    value = column.compared
    order = value.desc() if sort.startswith("-") else value.asc()
    if column.kind != "field":
        return [order.nulls_last(), RUN.c.id.desc()]
    return [order, RUN.c.id.desc() if sort.startswith("-") else RUN.c.id.asc()]
