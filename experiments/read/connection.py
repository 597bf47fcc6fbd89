"""The read connection that all queries share, and its helpers."""

import gc
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, fields
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import (
    ColumnElement,
    Executable,
    Select,
    Table,
    column,
    create_engine,
    func,
    select,
    text,
)
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.pool import StaticPool

from grpo_tui.experiments.db.configs import in_force, json_text, number_of
from grpo_tui.experiments.db.connection import open_reader
from grpo_tui.experiments.db.migration_sql import CURRENT
from grpo_tui.experiments.db.migrations import too_new, version
from grpo_tui.experiments.db.tables import RUN
from grpo_tui.experiments.errors import (
    NoStoreError,
    NothingStoredError,
    QueryError,
    StoreUnusableError,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

V = TypeVar("V", bound="DataclassInstance")
COLUMNS = {"key": "id", "run": "run_id", "group": "group_id", "index": "idx"}  # of these fields


def _as_json(config: str | None, path: str) -> str | None:
    value = in_force(config, path)
    return None if value is None else json_text(value)


def _as_number(config: str | None, path: str) -> float | None:
    return number_of(in_force(config, path))


class Reading:
    """One long-lived connection; no cursor outlives a call, so that the log can be checkpointed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = open_reader(path)
        for name, function in (("in_force", _as_json), ("number_in_force", _as_number)):
            self._file.create_function(name, 2, function, deterministic=True)
        self.schema = version(self._file)
        if self.schema == 0:
            self._file.close()
            raise NoStoreError(f"{path} is empty; the first run will create the store")
        self.note = too_new(self.schema, path) if self.schema > CURRENT else ""
        self._connection = create_engine(
            "sqlite://", creator=lambda: self._file, poolclass=StaticPool,
            isolation_level="AUTOCOMMIT",
        ).connect()  # fmt: skip
        self._data_version = self._version()
        self._stops = 0
        self._present: dict[str, frozenset[str]] = {}  # the columns of each table

    def close(self) -> None:
        self._connection.close()
        self._connection.engine.dispose()

    def interrupt(self) -> None:
        """Interrupt the query running in another thread; it raises InterruptedError there."""
        self._stops += 1
        self._file.interrupt()

    def integrity(self) -> str:
        """Return `ok`, or the damage that SQLite finds in the file."""
        return "; ".join(self._column(text("PRAGMA integrity_check")))

    def odd_tables(self, names: Sequence[str]) -> list[str]:
        """Return the tables that are views, virtual or computed: they may never end."""
        return self._column(
            text(
                "SELECT name FROM sqlite_master WHERE name IN (SELECT value FROM json_each(:names))"
                " AND (type <> 'table' OR sql LIKE 'CREATE VIRTUAL%' OR EXISTS "
                "(SELECT 1 FROM pragma_table_xinfo(sqlite_master.name) WHERE hidden > 1)) "
                "ORDER BY name"
            ).bindparams(names=json_text(names))
        )

    def changed(self) -> bool:
        """Return whether another connection has committed since the last call."""
        before, self._data_version = self._data_version, self._version()
        return before != self._data_version

    def _version(self) -> int:
        return int(self._file.execute("PRAGMA data_version").fetchone()[0])

    def _all(self, query: Executable) -> Sequence[Any]:
        try:
            return self._connection.execute(query).all()
        except OverflowError as error:
            large = max(
                (abs(v) for v in _parameters(query) if isinstance(v, int)), default=0
            )  # fmt: skip
            raise QueryError(
                f"{large} is too large: the store's whole numbers end at {2**63 - 1}"
            ) from error
        except OperationalError as error:
            if "interrupted" in str(error.orig):
                raise InterruptedError("the query was stopped") from error
            raise StoreUnusableError(f"cannot read {self.path}: {error.orig}") from error
        except DBAPIError as error:
            raise StoreUnusableError(
                f"{self.path} is damaged ({error.orig}); restore a backup, or try "
                f"`sqlite3 {self.path} .recover`"
            ) from error

    def _first(self, query: Executable) -> Any:
        return next(iter(self._all(query)), None)

    def _column(self, query: Executable) -> list[Any]:
        return [row[0] for row in self._all(query)]

    def _dict(self, query: Executable) -> dict[Any, Any]:
        """Return the second column by the first."""
        return {key: value for key, value in self._all(query)}  # noqa: C416 - a Row is no tuple

    def _value(self, query: Executable) -> Any:
        """Return the first column of the first row; None without rows."""
        return next(iter(self._column(query)), None)

    def _select(
        self, view: "type[DataclassInstance]", table: Table, *more: Any, **names: str | None
    ) -> Select[Any]:
        """Select the columns that are fields of the view, and more columns.

        `names` are the columns of fields of another name, None for a field that has none.
        """
        selected: list[ColumnElement[Any]] = [*more]
        for field in fields(view):
            name = (COLUMNS | names).get(field.name, field.name)
            if name is None or name not in table.c:
                continue
            if name in self._columns(table):
                selected.append(table.c[name].label(field.name))
            elif field.default is MISSING:
                raise StoreUnusableError(
                    f"the store has no column for {field.name}: restore a backup of it"
                )
        if "nonfinite" in table.c and "nonfinite" not in _names(view):
            selected.append(table.c.nonfinite)
        return select(*selected)

    def _columns(self, table: Table) -> frozenset[str]:
        """Return the names of the columns of a table that the file has: an older one has fewer."""
        if table.name not in self._present:
            info = func.pragma_table_info(table.name).table_valued(column("name"))
            self._present[table.name] = frozenset(self._column(select(info.c.name)))
        return self._present[table.name]

    def _views(self, view: type[V], query: Executable) -> tuple[V, ...]:
        return tuple(as_view(view, row) for row in self._all(query))

    def _short(self, run: int) -> str:
        short = self._value(select(RUN.c.short).where(RUN.c.id == run))
        if short is None:
            raise NothingStoredError(f"run {run} is no longer in the store")
        return str(short)


def among(column: ColumnElement[Any], numbers: Iterable[int]) -> ColumnElement[bool]:
    """Whether the column is one of any count of numbers."""
    return column.in_(
        select(func.json_each(json_text(list(numbers))).table_valued("value").c.value)
    )


@lru_cache
def _names(view: "type[DataclassInstance]") -> frozenset[str]:
    return frozenset(field.name for field in fields(view))


def as_view(view: type[V], row: Any, **more: Any) -> V:
    """Build a value from a row's columns of its fields' names and from more values.

    The column `nonfinite` names those where NULL means NaN.
    """
    columns: dict[str, Any] = row._asdict()
    nonfinite = columns["nonfinite"] if "nonfinite" in columns.keys() - _names(view) else ""
    for name in nonfinite.split(",") if nonfinite else ():
        columns[name] = math.nan
    for name in columns.keys() - _names(view):
        del columns[name]
    return view(**columns | more)


@contextmanager
def no_collection() -> Iterator[None]:
    """Disable garbage collection while a hundred thousand rows are read: it takes half the time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _parameters(query: Executable) -> Sequence[Any]:
    """Return the values of a query's parameters."""
    return list(query.compile().params.values())  # type: ignore[attr-defined]
