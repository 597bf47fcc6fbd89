"""The read connection that all queries share, and its helpers."""

import gc
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from grpo_tui.experiments.db.configs import in_force, json_text, number_of
from grpo_tui.experiments.db.connection import open_reader
from grpo_tui.experiments.db.migration_sql import CURRENT
from grpo_tui.experiments.db.migrations import too_new, version
from grpo_tui.experiments.db.texts import unescape
from grpo_tui.experiments.errors import (
    NoStoreError,
    NothingStoredError,
    QueryError,
    StoreUnusableError,
)
from grpo_tui.experiments.read.shapes import Columns, Shape, V


def _as_json(config: str | None, path: str) -> str | None:
    value = in_force(config, path)
    return None if value is None else json_text(value)


def _as_number(config: str | None, path: str) -> float | None:
    return number_of(in_force(config, path))


class Reading:
    """One long-lived connection; no cursor outlives a call, so that the log can be checkpointed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._conn = open_reader(path)
        for name, written in (("in_force", _as_json), ("number_in_force", _as_number)):
            self._conn.create_function(name, 2, written, deterministic=True)
        self.schema = version(self._conn)
        if self.schema == 0:
            self._conn.close()
            raise NoStoreError(f"{path} is empty; the first run will create the store")
        self.note = too_new(self.schema, path) if self.schema > CURRENT else ""
        self._data_version = self._version()
        self._stops = 0
        self._present: dict[str, frozenset[str]] = {}  # the columns of each table

    def close(self) -> None:
        self._conn.close()

    def interrupt(self) -> None:
        """Interrupt the query running in another thread; it raises InterruptedError there."""
        self._stops += 1
        self._conn.interrupt()

    def integrity(self) -> str:
        """Return `ok`, or the damage that SQLite finds in the file."""
        return "; ".join(self._column("PRAGMA integrity_check"))

    def odd_tables(self, names: Sequence[str]) -> list[str]:
        """Return the tables that are views, virtual or computed: they may never end."""
        return self._column(
            f"SELECT name FROM sqlite_master WHERE name IN ({marks(names)}) "
            "AND (type <> 'table' OR sql LIKE 'CREATE VIRTUAL%' OR EXISTS "
            "(SELECT 1 FROM pragma_table_xinfo(sqlite_master.name) WHERE hidden > 1)) "
            "ORDER BY name",
            names,
        )

    def changed(self) -> bool:
        """Return whether another connection has committed since the last call."""
        before, self._data_version = self._data_version, self._version()
        return before != self._data_version

    def _version(self) -> int:
        return int(self._conn.execute("PRAGMA data_version").fetchone()[0])

    def _all(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        try:
            return self._conn.execute(sql, values).fetchall()
        except OverflowError as error:
            large = max((abs(one) for one in values if isinstance(one, int)), default=0)
            raise QueryError(
                f"{large} is too large: the store's whole numbers end at {2**63 - 1}"
            ) from error
        except sqlite3.OperationalError as error:
            if "interrupted" in str(error):
                raise InterruptedError("the query was stopped") from error
            raise StoreUnusableError(f"cannot read {self.path}: {error}") from error
        except sqlite3.DatabaseError as error:
            raise StoreUnusableError(
                f"{self.path} is damaged ({error}); restore a backup, or try `sqlite3 {self.path} "
                ".recover`"
            ) from error

    def _one(self, sql: str, values: Sequence[Any] = ()) -> Any:
        rows = self._all(sql, values)
        return rows[0] if rows else None

    def _column(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        return [value for value, *_ in self._all(sql, values)]

    def _value(self, sql: str, values: Sequence[Any] = ()) -> Any:
        """Return the first column of the first row; None without rows."""
        return next(iter(self._column(sql, values)), None)

    def _columns(
        self, shape: Shape[Any], rest: str, values: Sequence[Any] = (), *more: str
    ) -> Columns:
        """Return the shape's columns and `more` of the rows that the rest of the SQL selects."""
        selected, names = self._select(shape)
        columns = ", ".join((selected, *more))
        rows = self._all(f"SELECT {columns} FROM {shape.table} {rest}", values)
        return shape.read(rows, names, more)

    def _views(self, shape: Shape[V], rest: str, values: Sequence[Any] = ()) -> tuple[V, ...]:
        return tuple(shape.make(self._columns(shape, rest, values)))

    def _select(self, shape: Shape[Any]) -> tuple[str, list[str]]:
        """Return the SQL of the shape's columns that the file has, and their names as fields."""
        if shape.table not in self._present:
            self._present[shape.table] = frozenset(
                self._column("SELECT name FROM pragma_table_info(?)", (shape.table,))
            )
        columns = shape.columns(self._present[shape.table])
        return ", ".join(f'{shape.table}."{name}"' for name in columns.values()), list(columns)

    def _short(self, run: int) -> str:
        short = self._value("SELECT short FROM run WHERE id = ?", (run,))
        if short is None:
            raise NothingStoredError(f"run {run} is no longer in the store")
        return str(short)


def text(value: str | None) -> str:
    return unescape(value) if value and "\\" in value else value or ""


@contextmanager
def no_collection() -> Iterator[None]:
    """Disable garbage collection while thousands of rows are read, all of which are kept."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def marks(values: Sequence[Any]) -> str:
    """Return a question mark for each value, separated by commas."""
    return ",".join("?" * len(values))
