"""Migrate a database file: back it up, then run the migrations in one transaction."""

import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from grpo_tui.experiments.db.connection import APPLICATION_ID, begin
from grpo_tui.experiments.db.machine import may_live
from grpo_tui.experiments.db.tables import CURRENT, MIGRATIONS, schema
from grpo_tui.experiments.db.texts import now_iso, seconds
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
        copy = _backup(conn, path)
    try:
        if current < CURRENT:
            _apply(conn, current)
    except sqlite3.DatabaseError as error:
        if "locked" in str(error):
            raise
        raise StoreUnusableError(
            f"{path} says that its schema is {current}, but it does not fit ({error}); restore a "
            f"backup, or choose another store with --db"
        ) from error
    return copy


def _apply(conn: sqlite3.Connection, done: int) -> None:
    """Apply the migrations after `done` in one transaction; an empty file gets all tables."""
    new = list(MIGRATIONS)[done:]
    # Not executescript, which commits. The statements themselves contain no semicolons.
    statements = ";".join(map(MIGRATIONS.__getitem__, new)).split(";") if done else schema()
    begin(conn)
    with conn:
        if version(conn) != done:  # another process was faster
            return
        for statement in statements:
            conn.execute(statement)
        conn.executemany(
            "INSERT INTO migration (n, name, at) VALUES (?, ?, ?)",
            [(number, name, now_iso()) for number, name in enumerate(new, start=done + 1)],
        )
        conn.execute(f"PRAGMA user_version = {CURRENT}")
        conn.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def _refuse_while_running(conn: sqlite3.Connection, path: Path) -> None:
    rows = conn.execute(
        "SELECT run.name, attempt.host, pid, pid_start, heartbeat FROM attempt "
        "JOIN run ON run.id = run_id WHERE attempt.ended_at IS NULL"
    ).fetchall()
    for name, host, pid, start, beat in rows:
        if time.time() - seconds(beat) < FRESH_S and may_live(host, pid, start):
            raise StoreReadOnlyError(
                f"{path} needs an upgrade of its schema, but {name} is being recorded into it; "
                "it is read only until that run ends"
            )


def _backup(conn: sqlite3.Connection, path: Path) -> Path:
    """Copy the database with SQLite's backup API, which sees commits that a file copy misses."""
    needed = 2 * path.stat().st_size
    free = shutil.disk_usage(path.parent).free
    if free < needed:
        raise StoreReadOnlyError(
            f"{path} needs an upgrade and {needed / 1e9:.2f} GB for a backup first, "
            f"but {free / 1e9:.2f} GB are free; free some space and try again"
        )
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    copy = path.with_name(f"{path.stem}.before-schema-{CURRENT}.{stamp}.db")
    with closing(sqlite3.connect(copy)) as target:
        conn.backup(target)
    return copy
