"""Insert rows, which are values by the names of their columns."""

import sqlite3
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

Row = Mapping[str, Any]
REPLACE = "INSERT OR REPLACE"


def insert_into(table: str, row: Row, verb: str = "INSERT") -> str:
    """Return the statement that inserts a row; names are quoted, since `limit` is a word of SQL."""
    columns = ", ".join(f'"{name}"' for name in row)
    return f"{verb} INTO {table} ({columns}) VALUES ({','.join('?' * len(row))})"


def insert(conn: sqlite3.Connection, table: str, rows: Sequence[Row], verb: str = "INSERT") -> None:
    """Insert rows in statements of up to 256, since each statement may yield the interpreter.

    With one statement per row, a busy thread made the lock last for seconds. All rows have the
    first one's columns in its order.
    """
    if not rows:
        return
    at, sql = 0, insert_into(table, rows[0], verb)
    most = conn.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER) // len(rows[0])
    for size in (256, 64, 16, 4, 1):
        while most >= size <= len(rows) - at:
            part = rows[at : at + size]
            conn.execute(_many(sql, size), [value for row in part for value in row.values()])
            at += size


@lru_cache(maxsize=128)
def _many(sql: str, rows: int) -> str:
    head, _, marks = sql.partition(" VALUES ")
    return f"{head} VALUES {','.join([marks] * rows)}"
