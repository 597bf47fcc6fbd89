"""Remove deleted runs in small transactions, so that a concurrent recorder never waits long.

A process that is killed in the middle leaves the run hidden, and the next purge goes on.
"""

import contextlib
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.exc import DBAPIError

from grpo_tui.experiments.db.connection import open_writer
from grpo_tui.experiments.db.paths import remove_run_folder, run_folder, starts_folder
from grpo_tui.experiments.db.tables import (
    EVENT,
    METRIC,
    ROLLOUT_GROUP,
    RUN,
    RUN_PARAM,
    STEP,
    UPDATE_PASS,
)
from grpo_tui.experiments.errors import StoreError
from grpo_tui.experiments.starts import PATHS, drop_unused
from grpo_tui.experiments.store import ExperimentStore, refuse_waiting

GROUPS = 50
ROWS = 2000
# the key of the rows that are removed a few at a time
LARGE = {
    ROLLOUT_GROUP: "id", METRIC: "step", UPDATE_PASS: "id", STEP: "id", EVENT: "id",
}  # fmt: skip


def purge_deleted(store: ExperimentStore) -> tuple[int, list[str]]:
    """Remove the runs that were deleted; return the bytes freed, and what could not be removed."""
    freed, complaints = 0, []
    for run in store.deleted():
        try:
            freed += purge(store, run)
        except (StoreError, DBAPIError, OSError) as error:
            complaints.append(str(error))
    return freed, complaints


def purge(store: ExperimentStore, run: int) -> int:
    """Remove the run's rows and folder, and return the bytes freed.

    Raises StoreError while events of the run wait to be taken into the store.
    """
    row = store.run_row(run)
    folder = run_folder(store.path, row.short)
    starts_folder(store.path)  # raises now, not when half is deleted
    refuse_waiting(store.path, row.short)
    store.begin_purge(run)
    freed: int = folder_size(folder) + row.bytes
    _delete_rows(store, run)
    remove_run_folder(store.path, row.short)
    store.execute(RUN.delete().filter_by(id=run))
    named = store.execute(select(RUN_PARAM.c.value).where(RUN_PARAM.c.path.in_(PATHS)))
    drop_unused(store.path, (row.value for row in named))
    with closing(open_writer(store.path)) as conn:
        # return free pages to the file system a few at a time
        before = 0
        while (free := _free_pages(conn)) not in (0, before):
            conn.execute("PRAGMA incremental_vacuum(2000)").fetchall()
            before = free
    return freed


def _free_pages(conn: sqlite3.Connection) -> int:
    return int(conn.execute("PRAGMA freelist_count").fetchone()[0])


def _delete_rows(store: ExperimentStore, run: int) -> None:
    """Delete the run's rows in the large tables, some in each transaction."""
    for large, key in LARGE.items():
        of_run, number = large.c.run_id == run, large.c[key]
        batch = select(number).where(of_run).limit(GROUPS if large is ROLLOUT_GROUP else ROWS)
        keys: Sequence[Any] = (0,)
        while keys:
            with store.transaction() as conn:
                keys = conn.scalars(batch).all()
                conn.execute(large.delete().where(of_run, number.in_(keys)))


def folder_size(folder: Path) -> int:
    """Return the total size of the files under a folder, in bytes."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size if path.is_file() and not path.is_symlink() else 0
    return total
