"""Import spilled events: by the recorder once the store works again, or by the next opener."""

import contextlib
import sqlite3
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from sqlalchemy.exc import SQLAlchemyError
from sqlmodel import col, select

from grpo_tui.experiments.db.connection import open_writer
from grpo_tui.experiments.db.machine import host_name, is_alive
from grpo_tui.experiments.db.paths import run_folder
from grpo_tui.experiments.db.spilled import runs_waiting, spilled
from grpo_tui.experiments.db.tables import AttemptRow
from grpo_tui.experiments.errors import RunNotFoundError, StoreError
from grpo_tui.experiments.record.rows import RecordedParts
from grpo_tui.experiments.record.spill import Spill, taking_in
from grpo_tui.experiments.record.writer import RunWriter
from grpo_tui.experiments.store import ExperimentStore

LOCK_LIMIT_S = 2.0


def may_pass(error: Exception) -> bool:
    """Return whether a failure may be temporary (file, disk) and is not caused by the data."""
    lasting = type(error) is sqlite3.DatabaseError  # damaged, or not a database at all
    return lasting or isinstance(error, sqlite3.OperationalError | OSError)


def drain(spill: Spill, writer: RunWriter) -> int:
    """Move spilled events into the store and count them; events already there are skipped."""
    count = 0
    for part in spill.read():
        stored = writer.stored([item.seq for item in part])
        fresh = [item for item in part if item.seq not in stored]
        try:
            if fresh:
                writer.write(fresh, limit=LOCK_LIMIT_S)
        except Exception as error:  # whatever the store refuses is kept in the file
            if may_pass(error):
                raise
            spill.keep(fresh)
        else:
            count += len(fresh)
    if spill.kept:
        writer.reserve(spill.last_kept)
    spill.clear()
    return count


def take_in_leftovers(store: ExperimentStore) -> tuple[int, list[str]]:
    """Import the events that dead processes spilled; return their number and any complaints.

    What still fails stays in its spill file.
    """
    count = 0
    complaints = []
    for short in runs_waiting(store.path):
        with contextlib.suppress(RunNotFoundError):
            run = store.key_of(short)
            spill = Spill(store.path, short)
            try:
                if _being_recorded(store, run):
                    continue
                with taking_in(store.path):
                    count += _take_in(store, run, spill)
            except (StoreError, SQLAlchemyError, sqlite3.Error, OSError) as error:
                complaints.append(f"run {short}: {spilled(store.path, short)} ({error})")
            else:
                if text := spill.complaint():
                    complaints.append(f"run {short}: {text}")
    return count, complaints


def take_in_later(store: Path, short: str, attempt: int, cause: str, every: float) -> None:
    """On a thread, try until the process ends to import what a run's own recorder spilled."""

    def work() -> None:
        spill = Spill(store, short)
        while spill.places:
            time.sleep(every)
            with (
                contextlib.suppress(StoreError, sqlite3.Error, OSError),
                closing(ExperimentStore(store)) as opened,
            ):
                run = opened.key_of(short)
                with taking_in(store):
                    _take_in(opened, run, spill)
                opened.end_attempt(run, attempt, cause)
                return

    threading.Thread(target=work, name="spilled events", daemon=True).start()


def _being_recorded(store: ExperimentStore, run: int) -> bool:
    query = select(AttemptRow).where(AttemptRow.run_id == run, col(AttemptRow.ended_at).is_(None))
    with store.session() as session:
        return any(
            attempt.host != host_name() or is_alive(attempt.pid, attempt.pid_start)
            for attempt in session.exec(query)
        )


def _take_in(store: ExperimentStore, run: int, spill: Spill) -> int:
    row = store.run_row(run)
    folder = run_folder(store.path, row.short)
    with closing(open_writer(store.path)) as conn:
        writer = RunWriter(conn, run, store.last_attempt(run), folder, recorded_parts(row.config))
        with closing(writer):
            return drain(spill, writer)


def recorded_parts(config: Mapping[str, Any]) -> RecordedParts:
    record = config.get("record") or {}
    return RecordedParts(
        tokens=str(record.get("tokens", "all")),
        rollouts=bool(record.get("rollouts", True)),
        trackers=tuple(map(str, record.get("trackers") or ())),
    )
