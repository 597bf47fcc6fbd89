"""What the tables and columns of the store are for, from the comments above them."""

import re
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import Column
from sqlmodel import SQLModel

from grpo_tui.experiments.db import tables


def described_tables() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Each table's name with its meaning and its columns: a word and its explanation."""
    source = Path(tables.__file__).read_text(encoding="utf-8")
    _, *parts = re.split(r"^class (\w+)", source, flags=re.MULTILINE)
    comments = {
        (name, field): comment
        for name, body in zip(parts[::2], parts[1::2], strict=True)
        for comment, field in re.findall(r"^    # (.+)\n    (\w+):", body, re.MULTILINE)
    }
    for row in tables.declared():
        table = SQLModel.metadata.tables[str(row.__tablename__)]
        lines = [("", str(row.__doc__))]
        for column, name in zip(table.columns, row.model_fields, strict=True):
            owner = next(cls for cls in row.__mro__ if (cls.__name__, name) in comments)
            lines.append((column.name, f"{_kind(column)}. {comments[owner.__name__, name]}"))
        yield table.name, lines


def _kind(column: Column[object]) -> str:
    """Type, key and reference of a column: `integer, → run`."""
    marks = ["key"] * column.primary_key + ["may be NULL"] * bool(column.nullable)
    references = (f"→ {key.column.table.name}" for key in column.foreign_keys)
    return ", ".join([str(column.type.compile()).lower(), *marks, *references])
