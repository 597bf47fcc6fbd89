"""Questions about runs: which there are, what one is, which one is meant."""

import json
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from experiments import values as v
from experiments.db.configs import flat
from experiments.db.paths import run_folder
from experiments.db.texts import escape
from experiments.errors import RunNotFoundError
from experiments.read.columns import FIELDS, Column, Known, nearest, parse_column, parse_columns
from experiments.read.connection import Reading, marks, no_collection, text
from experiments.read.filters import compile_filter
from experiments.read.status import Derived, LifeSigns, derive
from grpo_engine.metrics import spec

DEFAULT_METRICS = (
    "reward", "kl", "clip_ratio/region_mean", "tokens_per_second", "completions/mean_length",
    "entropy", "eval/accuracy", "eval/greedy/accuracy",
)  # fmt: skip

_BASE = (
    "run.id, run.short, run.uid, run.name, run.status, run.model, run.task, run.recipe, run.seed, "
    "run.step, run.total_steps, run.tokens, run.elapsed, run.created_at, run.started_at, "
    "run.ended_at, run.device, run.dataset_fingerprint, run.code_version, run.error, run.note, "
    "run.archived, run.bytes, run.config_hash, worker.n, worker.host, worker.heartbeat"
)
_LAST_ATTEMPT = (
    "LEFT JOIN attempt worker ON worker.id = "
    "(SELECT id FROM attempt WHERE run_id = run.id ORDER BY n DESC LIMIT 1)"
)
_LINE = (
    "first", "first_step", "last", "last_step", "min", "min_step", "max", "max_step", "mean",
    "count", "nonfinite",
)  # fmt: skip
_JOINS = 50


class LazyMetrics(Mapping[str, v.MetricSummary]):
    """The metrics of a run as one row of numbers, made into values when they are read.

    `places` says where in the row each metric begins; one whose count is NULL the run has not.
    """

    __slots__ = ("_places", "_row")

    def __init__(self, row: tuple[Any, ...], places: Mapping[str, int]) -> None:
        self._row, self._places = row, places

    def __getitem__(self, key: str) -> v.MetricSummary:
        place = self._places[key]
        line = self._row[place : place + len(_LINE)]
        if line[9] is None:
            raise KeyError(key)
        return v.MetricSummary(
            key=key, direction=spec(key).direction, first=line[0], first_step=line[1],
            last=line[2], last_step=line[3], min=line[4], min_step=line[5], max=line[6],
            max_step=line[7], mean=line[8], count=line[9], nonfinite=line[10],
        )  # fmt: skip

    def __iter__(self) -> Iterator[str]:
        return (key for key, place in self._places.items() if self._row[place + 9] is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return repr(dict(self))


class RunQuestions(Reading):
    """What can be asked about runs."""

    def runs(
        self, filter: str = "", *, sort: str = "-created", columns: Sequence[str] | str = (),
        archived: bool = False, limit: int | None = None,
        metrics: Sequence[str] = DEFAULT_METRICS, keys: Sequence[int] | None = None,
    ) -> tuple[v.RunSummary, ...]:  # fmt: skip
        """List runs; `metrics` are the keys to sum up, `columns` are in the column language."""
        known = self.known() if filter or columns or sort.lstrip("-") not in FIELDS else _NOTHING
        wanted = parse_columns(columns, known)
        condition, values = compile_filter(filter, known)
        order, order_values = _order(sort, known)
        if not archived:
            condition += " AND run.archived = 0"
        if keys is not None:
            condition += f" AND run.id IN ({marks(keys)})"
            values = [*values, *keys]
        extra = [column.sql(shown=True) for column in wanted]
        select = ", ".join([_BASE, *(sql for sql, _ in extra)])
        statuses = self._derive_active()
        with no_collection():
            rows = self._all(
                f"SELECT {select} FROM run {_LAST_ATTEMPT} WHERE {condition} "
                f"ORDER BY {order} LIMIT ?",
                [
                    *(value for _, found in extra for value in found),
                    *values, *order_values, -1 if limit is None else limit,
                ],
            )  # fmt: skip
            return self._summaries(rows, wanted, statuses, metrics)

    def known(self) -> Known:
        """The names of settings and metrics that the store has."""
        paths = self._all(
            "WITH RECURSIVE names (path) AS (SELECT min(path) FROM run_param UNION ALL SELECT "
            "(SELECT min(path) FROM run_param WHERE path > names.path) FROM names "
            "WHERE names.path IS NOT NULL) SELECT path FROM names WHERE path IS NOT NULL"
        )
        keys = self._all("SELECT name FROM metric_key")
        return Known(
            frozenset(text(row[0]) for row in paths), frozenset(text(row[0]) for row in keys)
        )

    def run(self, run: int) -> v.RunDetail:
        """A run with its settings and attempts."""
        found = self.runs(archived=True, keys=[run], metrics=self._keys_of(run))
        if not found:
            raise RunNotFoundError(f"run {run} is no longer in the store")
        config, versions = self._one("SELECT config, versions FROM run WHERE id = ?", (run,))
        tree, settled = json.loads(config), self._settled(run)
        return v.RunDetail(
            summary=found[0],
            config=tree,
            settings=flat(tree) | settled,
            settled=settled,
            versions=json.loads(versions or "{}"),
            attempts=self.attempts(run),
            folder=str(run_folder(self.path, found[0].id)),
        )

    def _settled(self, run: int) -> dict[str, Any]:
        rows = self._all(
            "SELECT payload FROM event WHERE run_id = ? AND kind = 'ModelLoaded' AND hidden = 0 "
            "ORDER BY seq DESC LIMIT 1", (run,),
        )  # fmt: skip
        return dict(json.loads(rows[0][0]).get("settled", {})) if rows else {}

    def settings(self, run: int) -> dict[str, Any]:
        """A run's settings by their paths."""
        rows = self._all("SELECT path, value FROM run_param WHERE run_id = ?", (run,))
        return {text(path): json.loads(value) for path, value in rows}

    def attempts(self, run: int) -> tuple[v.AttemptView, ...]:
        """Who worked on a run, oldest first."""
        rows = self._all(
            "SELECT n, from_step, until_step, host, pid, started_at, heartbeat, progress_at, "
            "ended_at, cause FROM attempt WHERE run_id = ? ORDER BY n",
            (run,),
        )
        return tuple(
            v.AttemptView(
                n=row[0], from_step=row[1], until_step=row[2], host=row[3], pid=row[4],
                started_at=row[5], heartbeat=row[6], progress_at=row[7], ended_at=row[8],
                cause=text(row[9]),
            )
            for row in rows
        )  # fmt: skip

    # -- which run is meant ---------------------------------------------------------------------

    def resolve(self, ref: str) -> v.RunSummary:
        """Find the run of an id, a name, a unique prefix of either, `@last` or `@best`."""
        if ref.startswith("@"):
            return self._special(ref)
        for condition in ("short = ?1 OR uid = ?1", "name = ?1"):
            rows = self._all(f"SELECT id FROM run WHERE {condition}", (escape(ref),))
            if len(rows) == 1:
                return self._summary(rows[0][0])
        rows = [
            row
            for row in self._all("SELECT id, short, uid, name FROM run")
            if ref and any(text(part).startswith(ref) for part in row[1:])
        ]
        if len(rows) == 1:
            return self._summary(rows[0][0])
        if rows:
            some = ", ".join(f"{row[1]} ({text(row[3])})" for row in rows[:5])
            raise RunNotFoundError(f"{ref!r} could be {len(rows)} runs: {some}; type more of it")
        names = [text(part) for row in self._all("SELECT short, name FROM run") for part in row]
        if not names:
            raise RunNotFoundError(f"no run is called {ref!r}: {self.path} holds no runs yet")
        raise RunNotFoundError(
            f"no run is called {ref!r} in {self.path}{nearest(ref, names)}; "
            "`grpo-tui runs --all` lists them"
        )

    def _special(self, ref: str) -> v.RunSummary:
        last = self._one("SELECT id, task FROM run ORDER BY created_at DESC, id DESC LIMIT 1")
        if ref not in ("@last", "@best"):
            raise RunNotFoundError(f"{ref!r} is no run; there are @last and @best")
        if last is None:
            raise RunNotFoundError(f"{ref} is no run yet: {self.path} holds none")
        if ref == "@last":
            return self._summary(last[0])
        for key in ("eval/accuracy", "eval/greedy/accuracy", "reward"):
            row = self._one(
                "SELECT run.id FROM metric_summary JOIN run ON run.id = run_id "
                "WHERE key_id = (SELECT id FROM metric_key WHERE name = ?) AND task = ? "
                "AND max IS NOT NULL ORDER BY max DESC, run.id DESC LIMIT 1",
                (key, last[1]),
            )
            if row is not None:
                return self._summary(row[0])
        return self._summary(last[0])

    def _summary(self, run: int) -> v.RunSummary:
        return self.runs(archived=True, keys=[run])[0]

    # -- rows to values -------------------------------------------------------------------------

    def _derive_active(self) -> dict[int, Derived]:
        """The true status of each run that says it is at work."""
        rows = self._all(
            "SELECT run.id, run.status, run.elapsed, run.step, a.host, a.boot, a.pid, a.pid_start, "
            "a.heartbeat, a.progress_at, a.ended_at FROM run JOIN attempt a ON a.run_id = run.id "
            "AND a.n = (SELECT max(n) FROM attempt WHERE run_id = run.id) "
            "WHERE run.status IN ('running', 'paused')"
        )
        found = {
            row[0]: derive(row[1], LifeSigns(*row[4:]), row[2] / row[3] if row[3] else 0.0)
            for row in rows
        }
        self._conn.create_function(
            "derived", 2, lambda run, stored: found[run][0] if run in found else stored
        )
        return found

    def _summaries(
        self, rows: Sequence[Any], columns: Sequence[Column], statuses: Mapping[int, Derived],
        metrics: Sequence[str],
    ) -> tuple[v.RunSummary, ...]:  # fmt: skip
        keys = [row[0] for row in rows]
        tags = self._tags(keys)
        lines, places = self._lines(keys, metrics)
        parents = dict(
            self._all(
                "SELECT c.id, p.short FROM run c JOIN run p ON p.id = c.parent_id "
                "WHERE c.parent_id IS NOT NULL"
            )
        )
        sweeps = self._sweeps()
        found = []
        for row in rows:
            key = row[0]
            status, since = statuses.get(key, (row[4], None))
            found.append(
                v.RunSummary(
                    key=key, id=row[1], uid=row[2], name=text(row[3]), status=status,
                    status_since=since, model=text(row[5]), task=text(row[6]), recipe=text(row[7]),
                    seed=row[8], step=row[9], total_steps=row[10], tokens=row[11], elapsed=row[12],
                    created_at=row[13], started_at=row[14], ended_at=row[15], device=text(row[16]),
                    dataset_fingerprint=text(row[17]), code_version=text(row[18]),
                    error=text(row[19]), note=text(row[20]), archived=bool(row[21]),
                    parent=parents.get(key), sweep=sweeps.get(key), bytes=row[22],
                    config_hash=row[23], attempts=row[24] or 0, host=row[25] or "",
                    heartbeat=row[26], tags=tags.get(key, ()),
                    metrics=LazyMetrics(lines.get(key, ()), places),
                    columns=_cells(columns, row[27:]) if columns else NO_COLUMNS,
                )
            )  # fmt: skip
        return tuple(found)

    def _tags(self, runs: Sequence[int]) -> dict[int, tuple[str, ...]]:
        found: dict[int, tuple[str, ...]] = {}
        rows = self._all(
            "SELECT run_id, tag FROM json_each(?) wanted CROSS JOIN run_tag "
            "ON run_id = wanted.value",
            [json.dumps(list(runs))],
        )
        for run, tag in rows:
            found[run] = (*found.get(run, ()), text(tag))
        return found

    def _sweeps(self) -> dict[int, str]:
        if self.schema < 3:
            return {}
        return dict(
            self._all("SELECT run.id, sweep.name FROM sweep JOIN run ON run.sweep_id = sweep.id")
        )

    def _keys_of(self, run: int) -> list[str]:
        rows = self._all(
            "SELECT name FROM metric_summary JOIN metric_key ON metric_key.id = key_id "
            "WHERE run_id = ?",
            (run,),
        )
        return [text(row[0]) for row in rows]

    def _lines(
        self, runs: Sequence[int], metrics: Sequence[str]
    ) -> tuple[dict[int, tuple[Any, ...]], dict[str, int]]:
        """One row of numbers for each run, and where in it each metric begins."""
        ids = self._all(
            f"SELECT name, id FROM metric_key WHERE name IN ({marks(metrics)}) ORDER BY id",
            [escape(name) for name in metrics],
        )
        found: dict[int, tuple[Any, ...]] = {}
        for at in range(0, len(ids), _JOINS):
            keys = [key for _, key in ids[at : at + _JOINS]]
            names = ", ".join(f"m{key}.{name}" for key in keys for name in _LINE)
            joins = " ".join(
                f"LEFT JOIN metric_summary m{key} ON m{key}.run_id = wanted.value "
                f"AND m{key}.key_id = {key}"
                for key in keys
            )
            rows = self._all(
                f"SELECT wanted.value, {names} FROM json_each(?) wanted {joins}",
                [json.dumps(list(runs))],
            )
            part = {row[0]: row for row in rows}
            found = {run: (*found[run], *row[1:]) for run, row in part.items()} if at else part
        places = {text(name): 1 + at * len(_LINE) for at, (name, _) in enumerate(ids)}
        return found, places


_NOTHING = Known(frozenset(), frozenset())
NO_COLUMNS: Mapping[str, Any] = MappingProxyType({})


def _order(sort: str, known: Known) -> tuple[str, list[str]]:
    """The ORDER BY of a sort key; a leading `-` is descending, runs without the value are last."""
    down = sort.startswith("-")
    column = parse_column(sort.removeprefix("-"), known)
    sql, values = column.sql()
    way = "DESC" if down else "ASC"
    if column.kind == "field":
        return f"{sql} {way}, run.id {way}", values
    return f"{sql} {way} NULLS LAST, run.id DESC", values


def _cells(columns: Sequence[Column], values: Sequence[Any]) -> dict[str, Any]:
    return {
        column.label: _cell(column, value) for column, value in zip(columns, values, strict=True)
    }


def _cell(column: Column, value: Any) -> Any:
    if column.kind == "setting" and isinstance(value, str):
        return json.loads(value)
    return text(value) if column.kind == "field" and isinstance(value, str) else value
