"""The connection that all questions share, and the small helpers that they need."""

import gc
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from experiments.db.connection import open_reader
from experiments.db.migration_sql import CURRENT
from experiments.db.migrations import too_new, version
from experiments.db.statements import select
from experiments.db.stored import TABLES
from experiments.db.texts import unescape
from experiments.errors import NoStoreError, NothingStoredError, StoreUnusableError
from experiments.read.shapes import Columns, Shape, V

R = TypeVar("R", bound=tuple[Any, ...])


class Reading:
    """One permanent connection; no cursor outlives a call, so that the log can be checkpointed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._conn = open_reader(path)
        self.schema = version(self._conn)
        if self.schema == 0:
            self._conn.close()
            raise NoStoreError(f"{path} is empty; a first run will make it a store")
        self.note = too_new(self.schema, path) if self.schema > CURRENT else ""
        self._data_version = self._version()
        self._stops = 0

    def close(self) -> None:
        """Close the connection."""
        self._conn.close()

    def interrupt(self) -> None:
        """Stop the query or search that runs in another thread with InterruptedError there."""
        self._stops += 1
        self._conn.interrupt()

    def integrity(self) -> str:
        """`ok`, or what SQLite finds wrong with the file."""
        return "; ".join(self._column("PRAGMA integrity_check"))

    def changed(self) -> bool:
        """Whether another connection has committed since the last call."""
        before, self._data_version = self._data_version, self._version()
        return before != self._data_version

    def _version(self) -> int:
        return int(self._conn.execute("PRAGMA data_version").fetchone()[0])

    def _all(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        try:
            return self._conn.execute(sql, values).fetchall()
        except sqlite3.OperationalError as error:
            if "interrupted" in str(error):
                raise InterruptedError("the query was stopped") from error
            raise StoreUnusableError(f"cannot read {self.path}: {error}") from error
        except sqlite3.DatabaseError as error:
            raise StoreUnusableError(
                f"{self.path} is damaged ({error}); restore a copy, or try `sqlite3 {self.path} "
                ".recover`"
            ) from error

    def _one(self, sql: str, values: Sequence[Any] = ()) -> Any:
        rows = self._all(sql, values)
        return rows[0] if rows else None

    def _column(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        """The first column of each row."""
        return [value for value, *_ in self._all(sql, values)]

    def _value(self, sql: str, values: Sequence[Any] = ()) -> Any:
        """The first column of the first row; None where there is no row."""
        return next(iter(self._column(sql, values)), None)

    def _columns(
        self, shape: Shape[Any], rest: str, values: Sequence[Any] = (), *more: str
    ) -> Columns:
        """The columns of the rows that the rest of the statement selects, and `more` of them."""
        columns = ", ".join((self._select(shape), *more))
        table = TABLES[shape.row]
        return shape.read(self._all(f"SELECT {columns} FROM {table} {rest}", values), *more)

    def _views(self, shape: Shape[V], rest: str, values: Sequence[Any] = ()) -> tuple[V, ...]:
        """The values of the rows that the rest of the statement selects."""
        return tuple(shape.make(self._columns(shape, rest, values)))

    def _select(self, shape: Shape[Any], of: str = "") -> str:
        """The columns of a shape, of a table under another name if it has one."""
        row = shape.row
        return select(row, shape.columns.values(), of=of, present=self._present(row))

    def _rows(self, row: type[R], rest: str, values: Sequence[Any] = ()) -> list[R]:
        """The rows that the rest of the statement selects."""
        columns = select(row, present=self._present(row))
        found = self._all(f"SELECT {columns} FROM {TABLES[row]} {rest}", values)
        return [row(*values) for values in found]

    def _present(self, row: Any) -> list[str] | None:
        """The columns that an older file has in a table; None where it has all."""
        if self.schema >= CURRENT:
            return None
        return self._column("SELECT name FROM pragma_table_info(?)", (TABLES[row],))

    def _short(self, run: int) -> str:
        short = self._value("SELECT short FROM run WHERE id = ?", (run,))
        if short is None:
            raise NothingStoredError(f"run {run} is no longer in the store")
        return str(short)


def text(value: str | None) -> str:
    """A stored text as it was given."""
    return unescape(value) if value and "\\" in value else value or ""


@contextmanager
def no_collection() -> Iterator[None]:
    """Keep the garbage collector from walking thousands of fresh rows that are no garbage."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def marks(values: Sequence[Any]) -> str:
    """As many question marks as there are values."""
    return ",".join("?" * len(values))
