"""Migrate a database file: back it up, then run each migration in its own transaction."""

import shutil
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from grpo_tui.experiments.db.connection import APPLICATION_ID, begin
from grpo_tui.experiments.db.machine import host_name, is_alive
from grpo_tui.experiments.db.tables import CURRENT, MIGRATIONS, schema
from grpo_tui.experiments.db.texts import iso, now_iso, seconds
from grpo_tui.experiments.errors import StoreReadOnlyError, StoreUnusableError

FRESH_S = 30.0


def version(conn: sqlite3.Connection) -> int:
    """Return the number of migrations applied to the file; 0 for an empty one."""
    return int(conn.execute("PRAGMA user_version").fetchone()[0])


def too_new(schema: int, path: Path) -> str:
    """Return the error message for a file that a newer version wrote."""
    return (
        f"{path} was written by a newer grpo-tui (schema {schema}, this one knows {CURRENT}); "
        "it is read only: upgrade grpo-tui to write to it"
    )


def migrate(conn: sqlite3.Connection, path: Path) -> Path | None:
    """Migrate the file and return the path of its backup; None if there was nothing to back up."""
    current = version(conn)
    if current > CURRENT:
        raise StoreReadOnlyError(too_new(current, path))
    copy = None
    if 0 < current < CURRENT:
        _refuse_while_running(conn, path)
        copy = backup(conn, path, f"before-schema-{CURRENT}")
    try:
        while (done := version(conn)) < CURRENT:
            _apply(conn, done)
    except sqlite3.DatabaseError as error:
        if "locked" in str(error):
            raise
        raise StoreUnusableError(
            f"{path} says that its schema is {current}, but it does not fit ({error}); restore a "
            f"backup, or choose another store with --db"
        ) from error
    return copy


def _apply(conn: sqlite3.Connection, done: int) -> None:
    """Apply the migration after `done`, or all of them to an empty file, in one transaction."""
    names = list(MIGRATIONS)[done:]
    if done:
        names = names[:1]
        statements: Sequence[str] = MIGRATIONS[names[0]].split(";")
    else:
        statements = schema()
    begin(conn)
    try:
        # another process may have migrated while this one waited for the lock
        if version(conn) == done:
            # executescript would commit; the statements themselves contain no semicolons
            for statement in statements:
                conn.execute(statement)
            conn.executemany(
                "INSERT INTO migration (n, name, at) VALUES (?, ?, ?)",
                [(number, name, now_iso()) for number, name in enumerate(names, start=done + 1)],
            )
            conn.execute(f"PRAGMA user_version = {done + len(names)}")
            conn.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        conn.execute("COMMIT")
    except BaseException:
        conn.execute("ROLLBACK")
        raise


def _refuse_while_running(conn: sqlite3.Connection, path: Path) -> None:
    rows = conn.execute(
        "SELECT run.name, attempt.host, pid, pid_start, heartbeat FROM attempt "
        "JOIN run ON run.id = run_id WHERE attempt.ended_at IS NULL"
    ).fetchall()
    for name, host, pid, start, beat in rows:
        fresh = time.time() - seconds(beat) < FRESH_S
        if fresh and (host != host_name() or is_alive(pid, start)):
            raise StoreReadOnlyError(
                f"{path} needs an upgrade of its schema, but {name} is being recorded into it; "
                "it is read only until that run ends"
            )


def backup(conn: sqlite3.Connection, path: Path, mark: str) -> Path:
    """Copy the database with SQLite's backup API, which sees commits that a file copy misses."""
    pages, size = (
        conn.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size")
    )
    free = shutil.disk_usage(path.parent).free
    if free < 2 * pages * size:
        raise StoreReadOnlyError(
            f"{path} needs an upgrade and {2 * pages * size / 1e9:.2f} GB for a backup first, "
            f"but {free / 1e9:.2f} GB are free; free some space and try again"
        )
    stamp = iso(time.time()).replace(":", "").replace("-", "")[:15]
    copy = path.with_name(f"{path.stem}.{mark}.{stamp}.db")
    with closing(sqlite3.connect(copy)) as target:
        conn.backup(target)
    return copy
