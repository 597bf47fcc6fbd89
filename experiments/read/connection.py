"""The connection that all questions share, and the small helpers that they need."""

import gc
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from experiments.db.connection import open_reader
from experiments.db.migrations import CURRENT, too_new, version
from experiments.db.texts import unescape
from experiments.errors import NoStoreError, NothingStoredError, StoreUnusableError


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
        return "; ".join(str(row[0]) for row in self._all("PRAGMA integrity_check"))

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

    def _short(self, run: int) -> str:
        row = self._one("SELECT short FROM run WHERE id = ?", (run,))
        if row is None:
            raise NothingStoredError(f"run {run} is no longer in the store")
        return str(row[0])


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
