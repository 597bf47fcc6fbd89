"""What to do when the store's file is deleted or replaced under an open connection."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path


def rescue_deleted_file(conn: sqlite3.Connection, path: Path) -> tuple[Path, str]:
    """Write the store again from its open connection; closes it, returns where and a sentence.

    Where another file has taken the name, the copy goes beside it and neither is lost.
    """
    home = path if not path.exists() else _free(path)
    home.parent.mkdir(parents=True, exist_ok=True)
    partial = home.with_name(home.name + ".partial")
    partial.unlink(missing_ok=True)
    with closing(sqlite3.connect(partial)) as target:
        conn.backup(target)
    if home == path:
        # a write-ahead log that outlived its file would be played into the new one
        for tail in ("-wal", "-shm"):
            path.with_name(path.name + tail).unlink(missing_ok=True)
    conn.close()
    os.replace(partial, home)  # noqa: PTH105 - atomic, and Path.replace says the same
    if home == path:
        return home, f"{path} was deleted while a run was recorded; it was written again, complete"
    return home, (
        f"{path} was replaced by another file while a run was recorded; "
        f"the run goes on in {home}: bring it back with `grpo-tui runs import {home}`"
    )


def _free(path: Path) -> Path:
    number = 1
    while True:
        candidate = path.with_name(f"{path.stem}.rescued-{number}.db")
        if not candidate.exists():
            return candidate
        number += 1
