"""Whether a file has the tables, columns and indices of a store, and nothing that acts by itself.

A store may come from elsewhere. A view or a computed column in a table's place may never end, a
trigger changes what is written, and without our unique indices rows are stored twice.
"""

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import Table, UniqueConstraint

from grpo_tui.experiments.db.migrations import version as schema_version
from grpo_tui.experiments.db.tables import CURRENT, RUN
from grpo_tui.experiments.errors import StoreUnusableError


def check_schema(conn: sqlite3.Connection, path: Path) -> int:
    """Return a file's version; refuse one whose schema is not ours, by name of what differs."""
    try:
        version = schema_version(conn)
        differences = list(_differences(conn, version)) if version else []
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        raise StoreUnusableError(
            f"{path} is damaged ({error}); restore a backup, or try `sqlite3 {path} .recover`"
        ) from error
    if differences:
        more = "; …" if len(differences) > 4 else ""
        raise StoreUnusableError(
            f"{path} is not a store of grpo-tui: {'; '.join(differences[:4])}{more}; restore a "
            "backup, or choose another store with --db"
        )
    return version


def _differences(conn: sqlite3.Connection, version: int) -> Iterator[str]:
    stored = {
        name: (kind, table, sql or "")
        for kind, name, table, sql in conn.execute(
            "SELECT type, name, tbl_name, sql FROM sqlite_master"
        )
    }
    tables = RUN.metadata.tables
    for name, (kind, table, _) in stored.items():
        if kind == "trigger" and table in tables:
            yield f"there is a trigger {name} on {table}"
    if version == CURRENT:  # an older or newer file may lack some
        yield from (f"{name} is missing" for name in sorted(tables.keys() - stored.keys()))
    for name, declared in tables.items():
        kind, _, sql = stored.get(name, ("", "", ""))
        if kind not in ("table", "") or sql.upper().startswith("CREATE VIRTUAL"):
            yield f"{name} is a {'virtual table' if kind == 'table' else kind}"
        elif kind:
            if re.search(r"\bCHECK\s*\(", sql, re.IGNORECASE):
                yield f"{name} has a check"
            yield from _columns(conn, declared, version)
            yield from _indices(conn, declared, version)


def _columns(conn: sqlite3.Connection, declared: Table, version: int) -> Iterator[str]:
    """What differs in the columns; an older file may lack some."""
    table, ours = declared.name, declared.c
    stored = {row[1]: row for row in conn.execute(f"PRAGMA table_xinfo({table})")}
    for column in ours:
        if version == CURRENT and column.name not in stored:
            yield f"{table}.{column.name} is missing"
    for _, name, _, required, default, key, hidden in stored.values():
        full_name = f"{table}.{name}"
        if hidden or (default is not None and "(" in default):
            yield f"{full_name} is computed"
        elif name not in ours:
            if required and default is None and version <= CURRENT:
                yield f"{full_name} is not ours, and required"
        elif bool(key) != ours[name].primary_key:
            yield f"{full_name} is {'' if key else 'not '}in the key"


def _indices(conn: sqlite3.Connection, declared: Table, version: int) -> Iterator[str]:
    """What differs in the unique indices, and those that compute; others only cost time."""
    table = declared.name
    constraints = (c for c in declared.constraints if isinstance(c, UniqueConstraint))
    indices = (index for index in declared.indexes if index.unique)
    ours = {frozenset(item.columns.keys()) for item in constraints}
    ours |= {frozenset(item.columns.keys()) for item in indices}
    conditions = {
        index.name
        for index in declared.indexes
        if index.dialect_options["sqlite"]["where"] is not None
    }
    stored = set()
    for _, name, unique, origin, partial in conn.execute(f"PRAGMA index_list({table})").fetchall():
        columns = [row[2] for row in conn.execute(f'PRAGMA index_xinfo("{name}")') if row[5]]
        if origin == "pk":
            continue
        if unique and not partial:
            stored.add(frozenset(columns))
        if None in columns or (partial and (unique or name not in conditions)) or (
            unique and frozenset(columns) not in ours and version <= CURRENT
        ):  # fmt: skip
            yield f"the index {name} of {table} is not ours"
    for missing in ours - stored if version <= CURRENT else ():
        yield f"the unique index of {table} over {', '.join(sorted(missing))} is missing"
