"""Delete runs in small transactions, so that a concurrent recorder never waits long."""

import contextlib
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from grpo_tui.experiments.db.connection import begin, open_writer
from grpo_tui.experiments.db.paths import run_folder
from grpo_tui.experiments.db.spilled import spilled
from grpo_tui.experiments.errors import StoreError
from grpo_tui.experiments.starts import drop_unused
from grpo_tui.experiments.store import ExperimentStore

GROUPS = 50
ROWS = 2000
_BIG = ("metric", "metric_hidden", "update_pass", "step", "event")


def purge(store: ExperimentStore, run: int) -> int:
    """Delete the run's rows and folder, and return the bytes freed.

    Raises StoreError while events of the run wait to be taken into the store.
    """
    row = store.run_row(run)
    if (waiting := spilled(store.path, row.short)).places:
        raise StoreError(
            f"run {row.short} is not deleted: {waiting}; they are taken into the store when it can "
            "be written, or remove the file first"
        )
    folder = run_folder(store.path, row.short)
    freed = folder_size(folder) + row.bytes
    with closing(open_writer(store.path)) as conn:
        _groups(conn, run)
        for table in _BIG:
            _rows(conn, table, run)
        begin(conn)
        conn.execute("DELETE FROM run WHERE id = ?", (run,))
        conn.execute("COMMIT")
        drop_unused(conn, store.path)
        # return free pages to the file system a few at a time
        while conn.execute("PRAGMA freelist_count").fetchone()[0] > 0:
            before = conn.execute("PRAGMA freelist_count").fetchone()[0]
            conn.execute("PRAGMA incremental_vacuum(2000)").fetchall()
            if conn.execute("PRAGMA freelist_count").fetchone()[0] >= before:
                break
    shutil.rmtree(folder, ignore_errors=True)
    return freed


def _groups(conn: sqlite3.Connection, run: int) -> None:
    """Delete rollouts and their index entries in batches of groups."""
    while True:
        groups = conn.execute(
            "SELECT id, prompt_text FROM rollout_group WHERE run_id = ? LIMIT ?", (run, GROUPS)
        ).fetchall()
        if not groups:
            return
        begin(conn)
        for key, prompt in groups:
            texts = conn.execute("SELECT id, text FROM rollout WHERE group_id = ?", (key,))
            conn.executemany(
                "INSERT INTO rollout_words (rollout_words, rowid, text) VALUES ('delete', ?, ?)",
                texts.fetchall(),
            )
            conn.execute(
                "INSERT INTO prompt_words (prompt_words, rowid, prompt_text) "
                "VALUES ('delete', ?, ?)",
                (key, prompt),
            )
            conn.execute("DELETE FROM rollout_group WHERE id = ?", (key,))
        conn.execute("COMMIT")


def _rows(conn: sqlite3.Connection, table: str, run: int) -> None:
    keyed = "step" if table in ("metric", "metric_hidden") else "id"
    while True:
        edge = conn.execute(
            f"SELECT {keyed} FROM {table} WHERE run_id = ? ORDER BY {keyed} LIMIT 1 OFFSET ?",
            (run, ROWS),
        ).fetchone()
        begin(conn)
        if edge is None:
            conn.execute(f"DELETE FROM {table} WHERE run_id = ?", (run,))
        else:
            conn.execute(f"DELETE FROM {table} WHERE run_id = ? AND {keyed} < ?", (run, *edge))
        conn.execute("COMMIT")
        if edge is None:
            return


def folder_size(folder: Path) -> int:
    """Return the total size of the files under a folder, in bytes."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size if path.is_file() and not path.is_symlink() else 0
    return total
