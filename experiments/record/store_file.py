"""The recorder's open store file: reopened when broken, rewritten when deleted."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from experiments.db.connection import open_writer
from experiments.store import ExperimentStore


class StoreFile:
    """The store and the connection that records events."""

    def __init__(self, store: ExperimentStore) -> None:
        self.store = store
        self.connection = open_writer(store.path, checkpoints=True)
        self._identity = _identity(store.path)

    def reopen(self) -> None:
        """Replace a connection that may be broken."""
        fresh = open_writer(self.store.path, checkpoints=True)
        self.connection.close()
        self.connection = fresh

    def rescue(self) -> str:
        """Rewrite the file if it was deleted or replaced; return a message, empty if it was not."""
        if _identity(self.store.path) == self._identity:
            return ""
        try:
            self.store.path, note = _write_again(self.connection, self.store.path)
            self.reopen()
        except (OSError, sqlite3.Error):
            return ""
        self._identity = _identity(self.store.path)
        return note

    def close(self) -> None:
        self.connection.close()
        self.store.close()


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _write_again(conn: sqlite3.Connection, path: Path) -> tuple[Path, str]:
    """Copy the store from its open connection and close it; return the path and a message.

    If another file has taken the name, the copy goes next to it, so that both survive.
    """
    home = path if not path.exists() else _free(path)
    home.parent.mkdir(parents=True, exist_ok=True)
    partial = home.with_name(home.name + ".partial")
    partial.unlink(missing_ok=True)
    with closing(sqlite3.connect(partial)) as target:
        conn.backup(target)
    if home == path:
        # SQLite would replay a write-ahead log of the old file into the new one
        for tail in ("-wal", "-shm"):
            path.with_name(path.name + tail).unlink(missing_ok=True)
    conn.close()
    os.replace(partial, home)  # noqa: PTH105 - atomic, and Path.replace says the same
    if home == path:
        return home, f"{path} was deleted while a run was recorded; it was restored completely"
    return home, (
        f"{path} was replaced by another file while a run was recorded; "
        f"recording continues in {home}; import it with `grpo-tui runs import {home}`"
    )


def _free(path: Path) -> Path:
    number = 1
    while True:
        candidate = path.with_name(f"{path.stem}.rescued-{number}.db")
        if not candidate.exists():
            return candidate
        number += 1
