"""Events that could not be committed: they wait in a file for each run, and are read in once."""

import fcntl
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import islice
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from grpo_engine import events as ev
from grpo_tui.experiments.db.machine import may_live
from grpo_tui.experiments.db.paths import spill_file, spill_folder
from grpo_tui.experiments.db.spilled import runs_waiting, spilled
from grpo_tui.experiments.db.tables import ATTEMPT, RUN
from grpo_tui.experiments.db.types import UNREADABLE, compact
from grpo_tui.experiments.errors import RunNotFoundError, StoreError
from grpo_tui.experiments.record.writer import RunWriter
from grpo_tui.experiments.store import ExperimentStore
from grpo_tui.experiments.values import RecordedEvent

BATCH = 100  # lines
LOCK_LIMIT_S = 2.0
STORE_ERRORS = (StoreError, SQLAlchemyError, sqlite3.Error, OSError)


def may_pass(error: Exception) -> bool:
    """Return whether the file or disk caused a failure, and not the data."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    is_damaged = type(cause) is sqlite3.DatabaseError  # includes a file of another format
    return is_damaged or isinstance(cause, sqlite3.OperationalError | OSError)


def append(file: Path, items: Sequence[RecordedEvent]) -> None:
    """Append events to a run's file durably, or leave it unchanged and raise OSError."""
    _append(file, map(_line, items))


def read_in(writer: RunWriter) -> tuple[int, str]:
    """Move a run's events into the store; return their number and a complaint about the others.

    Events that the store has already are skipped. Lines that this version does not know, or that
    the store refuses, stay in the file.
    """
    store, count, complaint = writer.store.path, 0, ""
    file = spill_file(store, writer.short)
    left: list[bytes] = []
    with _lock(store):
        for items in _batches(file, left) if file.is_file() else ():
            stored = writer.stored([item.seq for item in items])
            new = [item for item in items if item.seq not in stored]
            refused = _refused(writer, new)
            left += map(_line, refused)
            count += len(new) - len(refused)
        if left:
            # New events must not get their numbers.
            writer.update_run(last_seq=RUN.c.last_seq + len(left))
            complaint = (
                f"{len(left)} spilled events cannot be imported by this version and stay in "
                f"{file}: upgrade grpo-tui, or delete the file to give them up"
            )
        _replace(file, left)
    return count, complaint


def _refused(writer: RunWriter, items: Sequence[RecordedEvent]) -> Sequence[RecordedEvent]:
    """Write events, and return those that the store refuses for their data."""
    try:
        if items:
            writer.write(items, limit=LOCK_LIMIT_S)
    except Exception as error:
        if may_pass(error):
            raise
        if len(items) == 1:
            return items
        return [refused for item in items for refused in _refused(writer, [item])]
    return ()


def read_in_all(store: ExperimentStore, resumed: int = 0) -> tuple[int, list[str]]:
    """Read in the events of runs that no process records; return their number and complaints.

    Events that fail again stay in their file. For the `resumed` run that is an error: its next
    events would get the same numbers.
    """
    count, complaints = 0, []
    for short in runs_waiting(store.path):
        with suppress(RunNotFoundError):
            run = store.key_of(short)
            try:
                if _is_recorded(store, run):
                    continue
                with closing(RunWriter(store, store.run_row(run))) as writer:
                    added, text = read_in(writer)
            except STORE_ERRORS as error:
                text = f"{spilled(store.path, short)} ({error})"
                if run == resumed:
                    raise StoreError(f"the run cannot be resumed yet: {text}") from error
            else:
                count += added
            if text:
                complaints.append(f"run {short}: {text}")
    return count, complaints


def _is_recorded(store: ExperimentStore, run: int) -> bool:
    """Return whether a process records the run, or may do so on another host."""
    columns = ATTEMPT.c
    query = select(columns.host, columns.pid, columns.pid_start)
    query = query.filter_by(run_id=run, ended_at=None)
    return any(may_live(*row) for row in store.execute(query))


@contextmanager
def _lock(store: Path) -> Iterator[None]:
    """Hold the lock under which a single process reads events in."""
    folder = spill_folder(store)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# -- lines --------------------------------------------------------------------------------------


def _batches(file: Path, left: list[bytes]) -> Iterator[list[RecordedEvent]]:
    """Yield the events of a file in batches; add lines that are not events to `left`.

    An incomplete last line is ignored: the process was killed while writing it.
    """
    with file.open("rb") as lines:
        while batch := list(islice(lines, BATCH)):
            items = [(line, _item(line)) for line in batch]
            left += [line for line, item in items if item is None and line.endswith(b"\n")]
            yield [item for _, item in items if item]


def _line(item: RecordedEvent) -> bytes:
    data = {"seq": item.seq, "at": item.at, "event": ev.to_json(item.event)}
    return compact(data).encode() + b"\n"


def _item(line: bytes) -> RecordedEvent | None:
    try:
        data = json.loads(line)
        seq, event = data["seq"], ev.from_json(data["event"])
        is_number = type(seq) is int and 0 < seq < 2**62  # fits SQLite's integers
        return RecordedEvent(seq, float(data["at"]), event) if is_number else None
    except UNREADABLE:
        return None


def _replace(file: Path, left: Sequence[bytes]) -> None:
    """Replace the lines of a file by these, without duplicates."""
    partial = file.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    if left:
        _append(partial, dict.fromkeys(left))
        partial.replace(file)
    else:
        file.unlink(missing_ok=True)


def _append(file: Path, lines: Iterable[bytes]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab+") as out:
        size = out.tell()
        try:
            if size and os.pread(out.fileno(), 1, size - 1) != b"\n":
                out.write(b"\n")  # after a line that a killed process left incomplete
            out.writelines(lines)
            out.flush()
            os.fsync(out.fileno())
        except OSError:
            os.truncate(file, size)
            raise
