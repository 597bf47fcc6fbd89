"""Queries on runs: list them, describe one, resolve a name to one."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from types import MappingProxyType
from typing import Any

from grpo_engine.errors import nearest
from grpo_engine.metrics import spec
from grpo_tui.experiments import values as v
from grpo_tui.experiments.db.configs import flat
from grpo_tui.experiments.db.paths import run_folder
from grpo_tui.experiments.db.spilled import Spilled, runs_waiting, spilled
from grpo_tui.experiments.db.texts import escape
from grpo_tui.experiments.errors import RunActiveError, RunNotFoundError
from grpo_tui.experiments.read.columns import FIELDS, Column, Known, parse_column, parse_columns
from grpo_tui.experiments.read.connection import Reading, marks, no_collection, text
from grpo_tui.experiments.read.filters import compile_filter
from grpo_tui.experiments.read.shapes import Columns, Shape
from grpo_tui.experiments.read.status import Derived, LifeSigns, derive
from grpo_tui.experiments.starts import begun_from

DEFAULT_METRICS = (
    "reward", "kl", "clip_ratio/region_mean", "tokens_per_second", "completions/mean_length",
    "entropy", "eval/accuracy", "eval/greedy/accuracy",
)  # fmt: skip

RUN = Shape(v.RunSummary, "run", id="short")
ATTEMPT = Shape(v.AttemptView, "attempt")
LINE = tuple(one.name for one in fields(v.MetricSummary) if one.name not in ("key", "direction"))
_OF_ATTEMPT = ("attempts", "host", "heartbeat")
_LAST_ATTEMPT = (
    "LEFT JOIN attempt worker ON worker.id = "
    "(SELECT id FROM attempt WHERE run_id = run.id ORDER BY n DESC LIMIT 1)"
)
_COUNT = LINE.index("count")
_JOINS = 50
MOST_ANCESTORS = 100


class LazyMetrics(Mapping[str, v.MetricSummary]):
    """The metrics of a run, kept as one row of numbers and converted when read.

    `places` maps a metric to its offset in the row; a metric whose count is NULL is absent.
    """

    __slots__ = ("_places", "_row")

    def __init__(self, row: tuple[Any, ...], places: Mapping[str, int]) -> None:
        self._row, self._places = row, places

    def __getitem__(self, key: str) -> v.MetricSummary:
        place = self._places[key]
        numbers = self._row[place : place + len(LINE)]
        line = dict(zip(LINE, numbers, strict=True))
        if line["count"] is None:
            raise KeyError(key)
        return v.MetricSummary(key=key, direction=spec(key).direction, **line)

    def __iter__(self) -> Iterator[str]:
        return (key for key, place in self._places.items() if self._row[place + _COUNT] is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

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
        wanted = parse_columns(columns, known)
        condition, values = compile_filter(filter, known)
        order, order_values = _order(sort, known)
        if not archived:
            condition += " AND run.archived = 0"
        if keys is not None:
            condition += f" AND run.id IN ({marks(keys)})"
            values = [*values, *keys]
        extra = [column.sql(shown=True) for column in wanted]
        attempt = "worker.n, worker.host, worker.heartbeat"
        selected, names = self._select(RUN)
        select = ", ".join([selected, attempt, *(sql for sql, _ in extra)])
        waiting = self.waiting()
        statuses = self._derive_active(waiting)
        with no_collection():
            rows = self._all(
                f"SELECT {select} FROM run {_LAST_ATTEMPT} WHERE {condition} "
                f"ORDER BY {order} LIMIT ?",
                [
                    *(value for _, found in extra for value in found),
                    *values, *order_values, -1 if limit is None else limit,
                ],
            )  # fmt: skip
            found = RUN.read(rows, names, _OF_ATTEMPT)
            found["columns"] = [
                _cells(wanted, row[-len(wanted) :]) if wanted else NO_COLUMNS for row in rows
            ]
            return self._summaries(found, statuses, waiting, metrics)

    def waiting(self) -> dict[int, Spilled]:
        """Return by run which events are not in the store yet."""
        files = {short: spilled(self.path, short) for short in runs_waiting(self.path)}
        found = {short: one for short, one in files.items() if one.events}
        rows = self._all(
            f"SELECT id, short FROM run WHERE short IN ({marks(list(found))})", list(found)
        )
        return {run: found[short] for run, short in rows}

    def known(self) -> Known:
        """Return the names of settings and metrics in the store."""
        paths = self._column(
            "WITH RECURSIVE names (path) AS (SELECT min(path) FROM run_param UNION ALL SELECT "
            "(SELECT min(path) FROM run_param WHERE path > names.path) FROM names "
            "WHERE names.path IS NOT NULL) SELECT path FROM names WHERE path IS NOT NULL"
        )
        keys = self._column("SELECT name FROM metric_key")
        return Known(frozenset(map(text, paths)), frozenset(map(text, keys)))

    def run(self, run: int) -> v.RunDetail:
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
            ancestry=self.ancestry(run),
        )

    def _settled(self, run: int) -> dict[str, Any]:
        payload = self._value(
            "SELECT payload FROM event WHERE run_id = ? AND kind = 'ModelLoaded' AND hidden = 0 "
            "ORDER BY seq DESC LIMIT 1", (run,),
        )  # fmt: skip
        return dict(json.loads(payload).get("settled", {})) if payload else {}

    def ancestry(self, run: int) -> tuple[v.Ancestor, ...]:
        """Return the runs that a run began from, its parent first."""
        found: dict[int, v.Ancestor] = {}
        while len(found) < MOST_ANCESTORS:
            row = self._one(
                "SELECT p.id, p.short, p.name FROM run c JOIN run p ON p.id = c.parent_id "
                "WHERE c.id = ?", (run,),
            )  # fmt: skip
            if row is None or row[0] in found:  # only a damaged store has a circle
                break
            step = begun_from(self.settings(run))
            run = row[0]
            found[run] = v.Ancestor(id=row[1], name=text(row[2]), step=step)
        return tuple(found.values())

    def settings(self, run: int, *, in_force: bool = False) -> dict[str, Any]:
        """Return a run's settings by path, on request with the values that the recipe sets."""
        value = "value"
        if in_force:
            value = "coalesce(nullif(value, 'null'), in_force(config, path), value)"
        rows = self._all(
            f"SELECT path, {value} FROM run_param JOIN run ON run.id = run_id WHERE run_id = ?",
            (run,),
        )
        return {text(path): json.loads(value) for path, value in rows}

    def attempts(self, run: int) -> tuple[v.AttemptView, ...]:
        """Return the attempts at a run, oldest first."""
        return self._views(ATTEMPT, "WHERE run_id = ? ORDER BY n", (run,))

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
        for condition in ("short = ?1 OR uid = ?1", "name = ?1"):
            keys = self._column(f"SELECT id FROM run WHERE {condition}", (escape(ref),))
            if len(keys) == 1:
                return self._summary(keys[0])
        found = {
            key: f"{short} ({text(name)})"
            for key, short, uid, name in self._all("SELECT id, short, uid, name FROM run")
            if ref and any(part.startswith(ref) for part in (short, uid, text(name)))
        }
        if len(found) == 1:
            return self._summary(*found)
        if found:
            some = ", ".join(list(found.values())[:5])
            raise RunNotFoundError(f"{ref!r} could be {len(found)} runs: {some}; type more of it")
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
        newest, task = last
        if ref == "@last":
            return self._summary(newest)
        for key in ("eval/accuracy", "eval/greedy/accuracy", "reward"):
            best = self._value(
                "SELECT run.id FROM metric_summary JOIN run ON run.id = run_id "
                "WHERE key_id = (SELECT id FROM metric_key WHERE name = ?) AND task = ? "
                "AND max IS NOT NULL ORDER BY max DESC, run.id DESC LIMIT 1",
                (key, task),
            )
            if best is not None:
                return self._summary(best)
        return self._summary(newest)

    def _summary(self, run: int) -> v.RunSummary:
        return self.runs(archived=True, keys=[run])[0]

    # -- rows to values -------------------------------------------------------------------------

    def _derive_active(self, waiting: Mapping[int, Spilled]) -> dict[int, Derived]:
        """Derive the true status of each run that is stored as active, or whose end waits."""
        rows = self._all(
            "SELECT run.id, run.status, run.elapsed, run.step, a.host, a.boot, a.pid, a.pid_start, "
            "a.heartbeat, a.progress_at, a.ended_at FROM run JOIN attempt a ON a.run_id = run.id "
            "AND a.n = (SELECT max(n) FROM attempt WHERE run_id = run.id) "
            "WHERE run.status IN ('running', 'paused')"
        )
        found = {
            run: derive(status, LifeSigns(*signs), elapsed / step if step else 0.0)
            for run, status, elapsed, step, *signs in rows
        }
        found |= {run: (one.status, None) for run, one in waiting.items() if one.status}
        self._conn.create_function(
            "derived", 2, lambda run, status: found.get(run, (status, None))[0]
        )
        return found

    def _summaries(
        self, found: Columns, statuses: Mapping[int, Derived], waiting: Mapping[int, Spilled],
        metrics: Sequence[str],
    ) -> tuple[v.RunSummary, ...]:  # fmt: skip
        keys = found["key"]
        tags = self._tags(keys)
        lines, places = self._lines(keys, metrics)
        parents = dict(
            self._all(
                "SELECT c.id, p.short FROM run c JOIN run p ON p.id = c.parent_id "
                "WHERE c.parent_id IS NOT NULL"
            )
        )
        sweeps = self._sweeps()
        derived = [
            statuses.get(key, (status, None))
            for key, status in zip(keys, found["status"], strict=True)
        ]
        found["status"] = [status for status, _ in derived]
        found["status_since"] = [since for _, since in derived]
        waits = [waiting.get(key) for key in keys]
        found["waiting"] = [str(one) if one else "" for one in waits]
        found["step"] = [
            max(step, one.step) if one else step
            for step, one in zip(found["step"], waits, strict=True)
        ]
        found["attempts"] = [count or 0 for count in found["attempts"]]
        found["host"] = [host or "" for host in found["host"]]
        found["tags"] = [tags.get(key, ()) for key in keys]
        found["parent"], found["sweep"] = list(map(parents.get, keys)), list(map(sweeps.get, keys))
        found["metrics"] = [LazyMetrics(lines.get(key, ()), places) for key in keys]
        return tuple(RUN.make(found))

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
        names = self._column(
            "SELECT name FROM metric_summary JOIN metric_key ON metric_key.id = key_id "
            "WHERE run_id = ?",
            (run,),
        )
        return [text(name) for name in names]

    def _lines(
        self, runs: Sequence[int], metrics: Sequence[str]
    ) -> tuple[dict[int, tuple[Any, ...]], dict[str, int]]:
        """Return one row of numbers for each run, and the offset of each metric in it."""
        ids = self._all(
            f"SELECT name, id FROM metric_key WHERE name IN ({marks(metrics)}) ORDER BY id",
            [escape(name) for name in metrics],
        )
        found: dict[int, tuple[Any, ...]] = {}
        for at in range(0, len(ids), _JOINS):
            keys = [key for _, key in ids[at : at + _JOINS]]
            names = ", ".join(f'm{key}."{name}"' for key in keys for name in LINE)
            joins = " ".join(
                f"LEFT JOIN metric_summary m{key} ON m{key}.run_id = wanted.value "
                f"AND m{key}.key_id = {key}"
                for key in keys
            )
            rows = self._all(
                f"SELECT wanted.value, {names} FROM json_each(?) wanted {joins}",
                [json.dumps(list(runs))],
            )
            for run, *numbers in rows:
                found[run] = (*found.get(run, ()), *numbers)
        places = {text(name): at * len(LINE) for at, (name, _) in enumerate(ids)}
        return found, places


_NOTHING = Known(frozenset(), frozenset())
NO_COLUMNS: Mapping[str, Any] = MappingProxyType({})


def _order(sort: str, known: Known) -> tuple[str, list[str]]:
    """Return the ORDER BY of a sort key; `-` means descending, runs without the value come last."""
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
