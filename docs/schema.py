"""Writes docs/schema.md from the tables: python docs/schema.py."""

import ast
import sqlite3
import sys
import tempfile
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import get_args

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pydantic.fields import FieldInfo
from sqlalchemy import UniqueConstraint
from sqlmodel import SQLModel

from grpo_tui.experiments.db import tables
from grpo_tui.experiments.db.tables import MIGRATIONS
from grpo_tui.experiments.db.tokens import CODEC, FIELDS, TokenFile
from grpo_tui.experiments.db.types import Text

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "schema.md"
KINDS = {"int": "integer", "bool": "integer", "float": "real"}

HEAD = """# The store's schema

One SQLite file; per run a folder beside it, `runs/<id>/`, with checkpoints, log and `tokens.db`.
Written by `python docs/schema.py`; a test compares it with the store.

The file is in WAL mode, its application id is `GRPT`, and `PRAGMA user_version` counts the
migrations that it has had: {migrations}.

Texts are escaped so that NUL and lone surrogates
survive: `\\x00` and `\\udXXX`, with backslashes before such a sequence doubled. NaN is stored as
NULL, infinities as they are. Rows of steps that a later attempt did again stay, hidden.
"""

TAIL = """
## Full-text index

`rollout_words` over `rollout.text` and `prompt_words` over `rollout_group.prompt_text` are FTS5
tables without content of their own; their rowid is the row's `id`.

## tokens.db

One table:

    {table}

`seq` is that of the group's row, `codec` is {codec} so far, `data` is zlib
over a JSON header and byte planes (all first bytes of an array, then all second ones): prompt ids,
ids, ends, `old` as float32, then {fields}
one array per pass, and `sampled` where top-p and the like were used.
Log-probabilities other than `old` are float16 differences to it, so that
clipping is seen as it was; what does not fit in float16 is kept as float32. A blob is committed
before the row that points to it.
"""


def _word(field: FieldInfo) -> str:
    """The type of a column without `| None`."""
    return str((get_args(field.annotation) or (field.annotation,))[0].__name__)


def page() -> str:
    """The text of docs/schema.md."""
    names = ", ".join(f"`{name}`" for name in MIGRATIONS)
    parts = [HEAD.format(migrations=names), *(_section(row) for row in tables.declared())]
    with tempfile.TemporaryDirectory() as folder:
        file = TokenFile(Path(folder) / "tokens.db")
        file.write([(1, b"")])
        file.close()
        with closing(sqlite3.connect(file.path)) as conn:
            ((table,),) = conn.execute("SELECT sql FROM sqlite_master WHERE type = 'table'")
    fields = ", ".join(f"`{name}`" for name in FIELDS)
    signature = table.removeprefix("CREATE TABLE ")
    parts.append(TAIL.format(table=signature, codec=CODEC, fields=fields))
    return "\n".join(parts)


def _described() -> dict[tuple[str, str], str]:
    """The docstring below each field, by class and field."""
    tree = ast.parse(Path(tables.__file__).read_text(encoding="utf-8"))
    return {
        (row.name, field.target.id): doc.value.value
        for row in tree.body if isinstance(row, ast.ClassDef)
        for field, doc in pairwise(row.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        and isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant)
        and isinstance(doc.value.value, str)
    }  # fmt: skip


def _section(row: type[SQLModel]) -> str:
    descriptions = _described()
    table = SQLModel.metadata.tables[str(row.__tablename__)]
    lines = [f"## {table.name}", "", str(row.__doc__), ""]
    lines += ["| column | type | | what |", "| --- | --- | --- | --- |"]
    for column, (name, field) in zip(table.columns, row.model_fields.items(), strict=True):
        classes = (cls for cls in row.__mro__ if (cls.__name__, name) in descriptions)
        meaning = descriptions[next(classes).__name__, name]
        marks = ["key"] * column.primary_key + ["may be NULL"] * bool(column.nullable)
        marks += [f"→ {key.column.table.name}" for key in column.foreign_keys]
        kind = "text" if isinstance(column.type, Text) else KINDS[_word(field)]
        lines.append(f"| `{column.name}` | {kind} | {', '.join(marks)} | {meaning} |")
    unique = [item.columns for item in table.constraints if isinstance(item, UniqueConstraint)]
    indices = sorted(
        f"({', '.join(column.name for column in columns)})"
        for columns in (*unique, *(item.columns for item in table.indexes))
    )
    if indices:
        lines += ["", f"Indices: {', '.join(indices)}."]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
