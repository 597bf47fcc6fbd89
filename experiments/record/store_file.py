"""The recorder's open store file: checkpointed, reopened when broken, rewritten when deleted."""

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from sqlalchemy import Executable

from grpo_tui.experiments.db.connection import begin, open_writer, sql_connection
from grpo_tui.experiments.store import ExperimentStore

# A step of forty metrics writes some 45 pages. With a checkpoint every 20 steps, disk writes would
# take half of a step's time.
LOG_BYTES = 33_000_000


class StoreFile:
    """The store, the connection that records events, and one that reads during checkpoints."""

    def __init__(self, store: ExperimentStore) -> None:
        self.store = store
        self._open()
        self._identity = _identity(store.path)

    def _open(self) -> None:
        self.connection, self._reader = open_writer(self.store.path), open_writer(self.store.path)
        self.sql = sql_connection(self.connection)

    def reopen(self) -> None:
        """Replace connections that may be broken."""
        old = self.connection, self._reader
        self._open()
        for connection in old:
            connection.close()

    @contextmanager
    def transaction(self, limit: float) -> Iterator[None]:
        """Hold the write lock."""
        begin(self.connection, limit)
        with self.connection:
            yield

    def execute(self, statement: Executable) -> None:
        """Execute a statement in a transaction of its own."""
        with self.transaction(limit=0.2):
            self.sql.execute(statement)

    def checkpoint_if_long(self) -> None:
        """Move the write-ahead log into the file if it has `LOG_BYTES` or more."""
        with suppress(OSError):
            if Path(f"{self.store.path}-wal").stat().st_size >= LOG_BYTES:
                self.checkpoint()

    def checkpoint(self) -> None:
        """Move the write-ahead log into the file.

        A read transaction is open meanwhile, which prevents the WAL-reset bug of SQLite before
        3.51.3: a checkpoint that measured the log just before another process restarted it marks
        new commits as moved, and loses them. While the transaction reads from the log, no commit
        can restart it; where it need not read from the log, SQLite has nothing to move.
        """
        # After a failure the log stays, and the next checkpoint moves it.
        with suppress(sqlite3.Error):
            self._reader.execute("BEGIN")
            try:
                self._reader.execute("SELECT count(*) FROM sqlite_master").fetchall()
                self.connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            finally:
                self._reader.execute("ROLLBACK")

    def rescue(self) -> str:
        """Rewrite the file if it was deleted or replaced; return a message, or an empty text."""
        if _identity(self.store.path) == self._identity:
            return ""
        try:
            self.store.path, note = _restore(self.connection, self.store.path)
            self.reopen()
        except (OSError, sqlite3.Error):
            return ""
        self._identity = _identity(self.store.path)
        return note

    def close(self) -> None:
        self.connection.close()
        self._reader.close()


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        info = path.stat()
    except OSError:
        return None
    return info.st_dev, info.st_ino


def _restore(conn: sqlite3.Connection, path: Path) -> tuple[Path, str]:
    """Copy the store from its open connection and close it; return the path and a message.

    If another file has taken the name, the copy goes next to it, so that both survive.
    """
    home = path
    if path.exists():
        home = path.with_name(f"{path.stem}.rescued-{time.time():.0f}.db")
    home.parent.mkdir(parents=True, exist_ok=True)
    partial = home.with_name(home.name + ".partial")
    partial.unlink(missing_ok=True)
    with closing(sqlite3.connect(partial)) as target:
        conn.backup(target)
    if home == path:
        # SQLite would replay the old file's write-ahead log into the new one.
        for tail in ("-wal", "-shm"):
            path.with_name(path.name + tail).unlink(missing_ok=True)
    conn.close()
    os.replace(partial, home)  # noqa: PTH105 - Path.replace reads like a text's
    if home == path:
        return home, f"{path} was deleted while a run was recorded; it was restored completely"
    return home, (
        f"{path} was replaced by another file while a run was recorded; "
        f"recording continues in {home}; import it with `grpo-tui runs import {home}`"
    )
