"""Build SQL from row types, so that each statement names its columns."""

from collections.abc import Collection, Iterable
from functools import cache
from typing import Any

from experiments.db.stored import TABLES


def column(field: str) -> str:
    """Return the column of a field; `limit` is reserved in SQL and `pass` in Python."""
    return f'"{field.removesuffix("_")}"'


def select(
    row: Any, fields: Iterable[str] = (), *, of: str = "", present: Collection[str] | None = None
) -> str:
    """Select some or all columns of a row type, optionally under a table alias.

    A column not among those `present` in an older file is read as its default.
    """
    return ", ".join(
        f"{of or TABLES[row]}.{column(field)}"
        if present is None or field.removesuffix("_") in present
        else _literal(row._field_defaults[field])
        for field in fields or row._fields
    )


def _literal(value: Any) -> str:
    return "NULL" if value is None else repr(value)


@cache
def insert_into(row: Any, verb: str = "INSERT") -> str:
    marks = ",".join("?" * len(row._fields))
    columns = ", ".join(map(column, row._fields))
    return f"{verb} INTO {TABLES[row]} ({columns}) VALUES ({marks})"
