"""What the tables and columns of the store are for, from the docstrings beside them."""

import ast
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from sqlalchemy import Column
from sqlmodel import SQLModel

from grpo_tui.experiments.db import tables


def described_tables() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Each table's name with its meaning and its columns: a word and its explanation."""
    meanings = _meanings()
    for row in tables.declared():
        table = SQLModel.metadata.tables[str(row.__tablename__)]
        lines = [("", str(row.__doc__))]
        for column, name in zip(table.columns, row.model_fields, strict=True):
            owner = next(cls for cls in row.__mro__ if (cls.__name__, name) in meanings)
            lines.append((column.name, f"{_kind(column)}. {meanings[owner.__name__, name]}"))
        yield table.name, lines


def _kind(column: Column[object]) -> str:
    """Type, key and reference of a column: `integer, → run`."""
    kind = str(column.type.compile()).lower().replace("varchar", "text")
    marks = ["key"] * column.primary_key + ["may be NULL"] * bool(column.nullable)
    return ", ".join([kind, *marks, *(f"→ {key.column.table.name}" for key in column.foreign_keys)])


def _meanings() -> dict[tuple[str, str], str]:
    """The docstring below each field, by class and field."""
    tree = ast.parse(Path(tables.__file__).read_text(encoding="utf-8"))
    return {
        (row.name, field.target.id): doc.value.value
        for row in tree.body
        if isinstance(row, ast.ClassDef)
        for field, doc in pairwise(row.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(doc, ast.Expr)
        and isinstance(doc.value, ast.Constant)
        and isinstance(doc.value.value, str)
    }
