"""Remove deleted runs in small transactions, so that a concurrent recorder never waits long.

A process that is killed in the middle leaves the run hidden, and the next purge goes on.
"""

from contextlib import closing

from sqlalchemy import func, select
from sqlalchemy.exc import DBAPIError

from grpo_engine.paths import remove
from grpo_tui.experiments.db.connection import open_writer
from grpo_tui.experiments.db.paths import RUNS, run_folder, starts_folder
from grpo_tui.experiments.db.tables import (
    EVENT,
    METRIC,
    ROLLOUT_GROUP,
    RUN,
    RUN_PARAM,
    STEP,
    UPDATE_PASS,
)
from grpo_tui.experiments.db.texts import now_iso
from grpo_tui.experiments.errors import StoreError
from grpo_tui.experiments.starts import PATHS, drop_unused
from grpo_tui.experiments.store import ExperimentStore, refuse_waiting

ROWS, PAGES = 200, 2000  # of a transaction
LARGE = (ROLLOUT_GROUP, METRIC, UPDATE_PASS, STEP, EVENT)


def purge_deleted(store: ExperimentStore) -> tuple[int, list[str]]:
    """Remove the runs that were deleted; return how many, and what could not be removed."""
    runs = store.execute(select(RUN.c.id).where(RUN.c.deleted_at.is_not(None)))
    complaints = []
    for row in runs:
        try:
            purge(store, row.id)
        except (StoreError, DBAPIError, OSError) as error:
            complaints.append(str(error))
    return len(runs) - len(complaints), complaints


def purge(store: ExperimentStore, run: int) -> None:
    """Remove the run's rows and folder.

    Raises StoreError while events of the run wait to be taken into the store.
    """
    short = store.run_row(run).short
    run_folder(store.path, short), starts_folder(store.path)  # raise before anything is removed
    refuse_waiting(store.path, short)
    hidden = {"deleted_at": func.coalesce(RUN.c.deleted_at, now_iso()), "purging": True}
    store.execute(RUN.update().filter_by(id=run).values(hidden))
    _delete_rows(store, run)
    remove(store.path.parent, RUNS, short, ignore_errors=True)
    store.execute(RUN.delete().filter_by(id=run))
    named = store.execute(select(RUN_PARAM.c.value).where(RUN_PARAM.c.path.in_(PATHS)))
    drop_unused(store.path, (row.value for row in named))
    with closing(open_writer(store.path)) as conn:
        (free,) = conn.execute("PRAGMA freelist_count").fetchone()
        for _ in range(0, free, PAGES):
            conn.execute(f"PRAGMA incremental_vacuum({PAGES})").fetchall()


def _delete_rows(store: ExperimentStore, run: int) -> None:
    """Delete the run's rows in the large tables, a limited number in each transaction."""
    for table in LARGE:
        # METRIC has no id: its key is the run, the metric and the step.
        of_run, key = table.c.run_id == run, table.c.get("id", METRIC.c.key_id)
        first = select(key).where(of_run).limit(ROWS)
        while store.execute(table.delete().where(of_run, key.in_(first)).returning(key)):
            pass
