"""The connection through which a reader queries a store."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from sqlalchemy import (
    ColumnElement,
    Executable,
    FromClause,
    LargeBinary,
    Select,
    Table,
    cast,
    func,
    literal,
    select,
    true,
    type_coerce,
)
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.types import NullType

from grpo_tui.experiments.db.configs import in_force, json_text
from grpo_tui.experiments.db.connection import open_reader, sql_connection
from grpo_tui.experiments.db.migrations import too_new, version
from grpo_tui.experiments.db.schema import check_schema
from grpo_tui.experiments.db.tables import (
    CURRENT,
    EVALUATION,
    EVALUATION_SAMPLE,
    KEY_SET,
    METRIC,
    METRIC_KEY,
    ROLLOUT,
    ROLLOUT_REWARD,
    RUN,
    STEP,
    column_of,
)
from grpo_tui.experiments.db.texts import contains_words, visible
from grpo_tui.experiments.db.types import Damage, any_text, collecting
from grpo_tui.experiments.errors import (
    NoStoreError,
    NothingStoredError,
    QueryError,
    StoreError,
    StoreUnusableError,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

V = TypeVar("V", bound="DataclassInstance")
DELETED_SCHEMA, ORIGIN_SCHEMA = 8, 10  # the first with deleted runs, and with an origin
MAX_DAMAGED = 20  # values that are reported, and runs for each
# The parents of tables without a column for the run.
TOWARDS_RUN = {
    ROLLOUT_REWARD: ROLLOUT,
    EVALUATION_SAMPLE: EVALUATION,
    KEY_SET: STEP,
    METRIC_KEY: METRIC,
}


class Connection:
    """One long-lived connection; no cursor outlives a call, so that the log can be checkpointed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = open_reader(path)
        try:
            if check_schema(self.file, path) == 0:
                raise NoStoreError(f"{path} is empty; the first run will create the store")
        except StoreError:
            self.file.close()
            raise
        self.file.text_factory = any_text
        self.file.create_function("in_force", 2, in_force, deterministic=True)
        self.file.create_function("contains_words", 2, contains_words, deterministic=True)
        self.note = too_new(self.schema, path) if self.schema > CURRENT else ""
        self.interrupts = 0
        self._connection = sql_connection(self.file)
        self._data_version = self._version()
        self._damage: set[Damage] = set()
        self._damaged: dict[str, str] = {}
        self._described = 0  # number of damaged values that the texts cover

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def schema(self) -> int:
        """The number of migrations of the file, which a writer may upgrade at any time."""
        return version(self.file)

    def close(self) -> None:
        self._connection.close()
        self._connection.engine.dispose()

    def interrupt(self) -> None:
        """Interrupt the query running in another thread; it raises InterruptedError there."""
        self.interrupts += 1
        self.file.interrupt()

    def changed(self) -> bool:
        """Return whether another connection has committed since the last call."""
        before, self._data_version = self._data_version, self._version()
        return before != self._data_version

    def _version(self) -> int:
        return int(self.file.execute("PRAGMA data_version").fetchone()[0])

    # -- queries --------------------------------------------------------------------------------

    def rows(self, query: Executable) -> Sequence[Any]:
        try:
            with collecting(self._damage):
                return self._connection.execute(query).all()
        except OverflowError as error:
            numbers = query.compile().params.values()  # type: ignore[attr-defined]
            largest = max(abs(number) for number in numbers if isinstance(number, int))
            raise QueryError(
                f"{largest} is too large: the store's whole numbers end at {2**63 - 1}"
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

    def row(self, query: Executable) -> Any:
        """Return the first row; None without rows."""
        return next(iter(self.rows(query)), None)

    def column(self, query: Executable) -> list[Any]:
        return [row[0] for row in self.rows(query)]

    def pairs(self, query: Executable) -> dict[Any, Any]:
        """Return the second column by the first."""
        return {key: value for key, value in self.rows(query)}  # noqa: C416 - a Row is no tuple

    def value(self, query: Executable) -> Any:
        """Return the first column of the first row; None without rows."""
        return next(iter(self.column(query)), None)

    def views(
        self,
        view: type[V],
        table: Table,
        *order: ColumnElement[Any],
        **columns: Any,
    ) -> tuple[V, ...]:
        """Return a view of each row where the columns have these values."""
        query = self.select(view, table).filter_by(**columns).order_by(*order)
        return tuple(as_view(view, row) for row in self.rows(query))

    def select(
        self, view: "type[DataclassInstance]", table: Table, *more: ColumnElement[Any]
    ) -> Select[Any]:
        """Select the columns that hold fields of the view, and more columns, which come first."""
        selected = [*more]
        labels, stored = {column.key for column in more}, self._columns(table)
        for field in fields(view):
            name = column_of(table, field.name)
            if name not in table.c or field.name in labels:
                continue
            if name in stored:
                selected.append(table.c[name].label(field.name))
            elif field.default is MISSING and field.default_factory is MISSING:
                raise StoreUnusableError(
                    f"the store has no column for {field.name}: restore a backup of it"
                )
        if "nonfinite" in table.c and "nonfinite" not in _names(view):
            selected.append(table.c.nonfinite)
        return select(*selected)

    def _columns(self, table: Table) -> set[str]:
        """Return the names of the columns that the file has: an older one has fewer."""
        if self.schema == CURRENT:
            return set(table.c.keys())
        return {row[1] for row in self.file.execute(f"PRAGMA table_info({table.name})")}

    def not_deleted(self, runs: FromClause = RUN) -> ColumnElement[bool]:
        return runs.c.deleted_at.is_(None) if self.schema >= DELETED_SCHEMA else true()

    def short_id(self, run: int) -> str:
        short = self.value(select(RUN.c.short).filter_by(id=run))
        if short is None:
            raise NothingStoredError(f"run {run} is no longer in the store")
        return str(short)

    # -- damage ---------------------------------------------------------------------------------

    def damaged(self) -> dict[str, str]:
        """Describe by run's id what was read of the run and is damaged."""
        if len(self._damage) != self._described:
            self._described = len(self._damage)
            values: dict[tuple[str, str], list[str]] = {}
            for damage in sorted(self._damage, key=str)[:MAX_DAMAGED]:
                for run in self._runs_with(damage):
                    values.setdefault(run, []).append(str(damage))
            self._damaged = {
                run: f"{name} is damaged: {', '.join(parts[:3])}"
                for (run, name), parts in values.items()
            }
        return self._damaged

    def _runs_with(self, damage: Damage) -> list[tuple[str, str]]:
        """Return the runs whose rows have this value, at most `MAX_DAMAGED`."""
        name, _, column_name = damage.column.partition(".")
        table = RUN.metadata.tables[name]
        value = damage.stored
        stored: ColumnElement[Any] = type_coerce(table.c[column_name], NullType())
        if isinstance(value, bytes):  # a text that is not UTF-8 has the same bytes
            stored = cast(stored, LargeBinary)
        query = select(RUN.c.short, RUN.c.name).select_from(table).distinct()
        for parent in (TOWARDS_RUN.get(table), RUN):
            if parent is not None and parent is not table:
                query = query.join(parent)
        query = query.where(stored.is_(literal(value, NullType()))).limit(MAX_DAMAGED)
        return [(run, visible(f"run {run} ({name})")) for run, name in self.rows(query)]


def among(column: ColumnElement[Any], numbers: Iterable[int]) -> ColumnElement[bool]:
    """Whether the column is one of the numbers, however many there are."""
    values = func.json_each(json_text(list(numbers))).table_valued("value")
    return column.in_(select(values.c.value))


@cache
def _names(view: "type[DataclassInstance]") -> frozenset[str]:
    return frozenset(field.name for field in fields(view))


def as_view(view: type[V], row: Any, **more: Any) -> V:
    """Build a value from the columns of a row that have the names of its fields, and from `more`.

    The column `nonfinite` names those where NULL means NaN.
    """
    columns = row._asdict()
    names = _names(view)
    values = {name: value for name, value in columns.items() if name in names}
    if "nonfinite" not in names and (nonfinite := columns.get("nonfinite")):
        values |= dict.fromkeys(names.intersection(nonfinite.split(",")), math.nan)
    return view(**values | more)
