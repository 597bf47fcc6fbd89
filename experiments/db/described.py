"""The tables of the store and their columns, as text."""

from collections.abc import Iterator

from sqlalchemy import Column
from sqlmodel import SQLModel

from grpo_tui.experiments.db.tables import declared


def described_tables() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Each table's name with its meaning and its columns: a word and its explanation."""
    for row in declared():
        table = SQLModel.metadata.tables[str(row.__tablename__)]
        columns = [(column.name, _kind(column)) for column in table.columns]
        yield table.name, [("", str(row.__doc__)), *columns]


def _kind(column: Column[object]) -> str:
    """Type, key and reference of a column: `integer, → run`."""
    kind = str(column.type.compile()).lower().replace("varchar", "text")
    marks = ["key"] * column.primary_key + ["may be NULL"] * bool(column.nullable)
    return ", ".join([kind, *marks, *(f"→ {key.column.table.name}" for key in column.foreign_keys)])
