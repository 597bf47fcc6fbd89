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
    ForeignKey,
    FromClause,
    LargeBinary,
    Select,
    Table,
    cast,
    column,
    create_engine,
    func,
    literal,
    select,
    text,
    true,
    type_coerce,
)
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.pool import StaticPool
from sqlalchemy.types import NullType

from grpo_tui.experiments.db.configs import in_force, json_text, number_of
from grpo_tui.experiments.db.connection import open_reader
from grpo_tui.experiments.db.migration_sql import CURRENT
from grpo_tui.experiments.db.migrations import too_new, version
from grpo_tui.experiments.db.schema import check_schema
from grpo_tui.experiments.db.tables import RUN
from grpo_tui.experiments.db.texts import visible
from grpo_tui.experiments.db.types import BadText, Damage, any_text, noting
from grpo_tui.experiments.errors import (
    NoStoreError,
    NothingStoredError,
    QueryError,
    StoreUnusableError,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

V = TypeVar("V", bound="DataclassInstance")
DELETED_SCHEMA = 8  # the first that has deleted runs
MOST_DAMAGED = 20  # values that are named, and runs for each
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
        try:
            check_schema(self._file, path)
        except StoreUnusableError:
            self._file.close()
            raise
        for name, function in (("in_force", _as_json), ("number_in_force", _as_number)):
            self._file.create_function(name, 2, function, deterministic=True)
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
        self._damage: set[Damage] = set()
        self._damaged: dict[str, str] = {}
        self._described = 0  # how much of the damage that is about

    @property
    def schema(self) -> int:
        """The number of migrations of the file, which a writer may upgrade at any time."""
        return version(self._file)

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

    def damaged(self) -> dict[str, str]:
        """Return a line by run's id for what was read of the run and is unreadable."""
        if len(self._damage) != self._described:
            self._described = len(self._damage)
            self._damaged = self._describe()
        return self._damaged

    def _describe(self) -> dict[str, str]:
        parts: dict[tuple[str, str], list[str]] = {}
        for damage in sorted(self._damage, key=str)[:MOST_DAMAGED]:
            for run in self._runs_with(damage):
                parts.setdefault(run, []).append(str(damage))
        return {
            run: f"{name} is damaged: {', '.join(some[:3])}{' …' if len(some) > 3 else ''}"
            for (run, name), some in parts.items()
        }

    def _runs_with(self, damage: Damage) -> list[tuple[str, str]]:
        """Return the runs whose rows hold this value, at most `MOST_DAMAGED`."""
        name, _, column_name = damage.column.partition(".")
        table = RUN.metadata.tables[name]
        value = damage.stored
        stored: ColumnElement[Any] = type_coerce(table.c[column_name], NullType())
        if isinstance(value, BadText):
            stored, value = cast(stored, LargeBinary), value.data
        query = select(RUN.c.short, RUN.c.name).select_from(table).distinct()
        while table is not RUN:
            if (key := _towards_run(table)) is None:
                return [("", "the store")]
            parent, child = key.column.table, key.parent.table
            table = parent if table is child else child
            query = query.join(table, key.parent == key.column)
        query = query.where(stored.is_(literal(value, NullType()))).limit(MOST_DAMAGED)
        return [(run, visible(f"run {run} ({name})")) for run, name in self._all(query)]

    def changed(self) -> bool:
        """Return whether another connection has committed since the last call."""
        before, self._data_version = self._data_version, self._version()
        return before != self._data_version

    def _version(self) -> int:
        return int(self._file.execute("PRAGMA data_version").fetchone()[0])

    def _all(self, query: Executable) -> Sequence[Any]:
        try:
            with noting(self._damage):
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
            if "UTF-8" in str(error.orig) and self._file.text_factory is str:
                self._file.text_factory = any_text  # slower
                return self._all(query)
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

    def _not_deleted(self, runs: FromClause = RUN) -> ColumnElement[bool]:
        return runs.c.deleted_at.is_(None) if self.schema >= DELETED_SCHEMA else true()

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


def _towards_run(table: Table) -> ForeignKey | None:
    """Return the key by which a table's rows belong to a run, or to rows that do."""
    own = sorted(table.foreign_keys, key=lambda key: key.parent.name != "run_id")
    others = (
        key
        for other in RUN.metadata.tables.values()
        for key in other.foreign_keys
        if key.column.table is table and "run_id" in other.c
    )
    return next(iter((*own, *others)), None)


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
