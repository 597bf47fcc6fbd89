"""Check that a file has the tables, columns and unique indices of a store, and no active parts.

A store may come from elsewhere. A view or a computed column may run for ever, a trigger changes
what is written, and without the unique indices rows are stored twice.
"""

import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path

from grpo_tui.experiments.db.migrations import version as schema_version
from grpo_tui.experiments.db.tables import CURRENT, schema
from grpo_tui.experiments.errors import StoreUnusableError

# Table, name and kind of each part of a file's schema. Indices that only save time are left out.
PARTS = """
WITH part AS (SELECT type, name, tbl_name AS of, coalesce(sql, '') AS sql FROM sqlite_master),
  plain AS (SELECT name FROM part WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'),
  indexed AS (
    SELECT plain.name AS of, item.name, "unique", partial,
      (SELECT group_concat(coalesce(name, '()'), ', ')
       FROM (SELECT name FROM pragma_index_xinfo(item.name) WHERE key ORDER BY name)) AS columns
    FROM plain, pragma_index_list(plain.name) AS item)
SELECT name, name, 'table' FROM plain
UNION SELECT name, name, 'virtual table' FROM part WHERE sql LIKE 'CREATE VIRTUAL%'
UNION SELECT of, name, type FROM part WHERE type IN ('view', 'trigger')
UNION SELECT name, name, 'check in' FROM part WHERE type = 'table' AND sql LIKE '%CHECK%(%'
UNION SELECT plain.name, plain.name || '.' || item.name,
  CASE WHEN hidden OR dflt_value LIKE '%(%' THEN 'computed column'
       WHEN pk THEN 'key column' ELSE 'column' END
  FROM plain, pragma_table_xinfo(plain.name) AS item
UNION SELECT plain.name, plain.name || '.' || item.name, 'column that may be NULL'
  FROM plain, pragma_table_xinfo(plain.name) AS item WHERE NOT "notnull" AND NOT pk
UNION SELECT of, of || '.' || columns, 'unique index over' FROM indexed
  WHERE "unique" AND NOT partial
UNION SELECT of, name, 'index' FROM indexed WHERE partial OR columns LIKE '%()%'
"""
NEEDED = ("table", "column", "key column", "unique index over")  # parts of other kinds do harm


def check_schema(conn: sqlite3.Connection, path: Path) -> int:
    """Return a file's version; refuse another schema, and name the differences."""
    try:
        version = schema_version(conn)
        parts = set(conn.execute(PARTS)) if version else set()
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        raise StoreUnusableError(
            f"{path} is damaged ({error}); restore a backup, or try `sqlite3 {path} .recover`"
        ) from error
    declared = _declared()
    tables = {table for table, _, _ in declared}
    later = {name for _, name, kind in parts - declared if kind == "column"}
    differences = [
        f"the {kind} {name} is not ours"
        for table, name, kind in sorted(parts - declared)
        if table in tables and kind not in NEEDED and name not in later
    ]
    if version == CURRENT:  # an older or newer file may lack some
        differences += [
            f"the {kind} {name} is missing"
            for _, name, kind in sorted(declared - parts)
            if kind in NEEDED
        ]
    if differences:
        raise StoreUnusableError(
            f"{path} is not a store of grpo-tui: {'; '.join(differences[:4])}; restore a "
            "backup, or choose another store with --db"
        )
    return version


@cache
def _declared() -> set[tuple[str, str, str]]:
    with closing(sqlite3.connect(":memory:")) as conn:
        for statement in schema():
            conn.execute(statement)
        return set(conn.execute(PARTS))
