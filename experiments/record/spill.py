"""Events that could not be committed: a file for each run, read in later, each event once."""

import fcntl
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from grpo_engine import events as ev
from grpo_tui.experiments.db.machine import host_name, is_alive
from grpo_tui.experiments.db.paths import spill_file, spill_folder
from grpo_tui.experiments.db.spilled import runs_waiting, spilled
from grpo_tui.experiments.db.tables import ATTEMPT
from grpo_tui.experiments.errors import RunNotFoundError, StoreError
from grpo_tui.experiments.record.store_file import StoreFile
from grpo_tui.experiments.record.writer import RunWriter
from grpo_tui.experiments.store import ExperimentStore
from grpo_tui.experiments.values import RecordedEvent

CHUNK = 200
LOCK_LIMIT_S = 2.0
STORE_ERRORS = (StoreError, SQLAlchemyError, sqlite3.Error, OSError)


def may_pass(error: Exception) -> bool:
    """Return whether a failure may be temporary (file, disk) and is not caused by the data."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    lasting = type(cause) is sqlite3.DatabaseError  # damaged, or not a database at all
    return lasting or isinstance(cause, sqlite3.OperationalError | OSError)


def append(store: Path, run: str, items: Sequence[RecordedEvent]) -> None:
    """Append events to a run's file durably, or leave it unchanged and raise OSError."""
    _append(spill_file(store, run), map(_line, items))


def read_in(writer: RunWriter) -> tuple[int, str]:
    """Move a run's events into the store; return their number and what stays, in words.

    Events that the store has already are skipped. Lines that this version does not know, or that
    the store refuses, stay in the file.
    """
    store, count = writer.file.store.path, 0
    file = spill_file(store, writer.short)
    left: list[bytes] = []
    with _lock(store):
        for items in _batches(file, left) if file.is_file() else ():
            stored = writer.stored([item.seq for item in items])
            new = [item for item in items if item.seq not in stored]
            try:
                if new:
                    writer.write(new, limit=LOCK_LIMIT_S)
            except Exception as error:  # whatever the store refuses
                if may_pass(error):
                    raise
                left += map(_line, new)
            else:
                count += len(new)
        if left:
            writer.reserve(max(_number(_fields(line)) for line in left))
        _replace(file, left)
    return count, _complaint(left, file)


def read_in_all(store: ExperimentStore) -> tuple[int, list[str]]:
    """Read in the events of runs that no process records; return their number and complaints.

    What still fails stays in its file.
    """
    count, complaints = 0, []
    for short in runs_waiting(store.path):
        with suppress(RunNotFoundError):
            run = store.key_of(short)
            try:
                if _is_recorded(store, run):
                    continue
                added, text = _read_in(store, run)
            except STORE_ERRORS as error:
                text = f"{spilled(store.path, short)} ({error})"
            else:
                count += added
            if text:
                complaints.append(f"run {short}: {text}")
    return count, complaints


def _read_in(store: ExperimentStore, run: int) -> tuple[int, str]:
    row, attempt = store.run_row(run), store.last_attempt(run)
    with closing(StoreFile(store)) as file:
        return read_in(RunWriter(file, row, attempt))


def _is_recorded(store: ExperimentStore, run: int) -> bool:
    """Return whether a process still records the run; one on another host may."""
    columns = ATTEMPT.c
    query = select(columns.host, columns.pid, columns.pid_start)
    query = query.filter_by(run_id=run, ended_at=None)
    return any(
        host != host_name() or is_alive(pid, start) for host, pid, start in store.execute(query)
    )


@contextmanager
def _lock(store: Path) -> Iterator[None]:
    """Hold the lock under which events are read in, so that one process does it."""
    folder = spill_folder(store)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# -- lines --------------------------------------------------------------------------------------


def _batches(file: Path, left: list[bytes]) -> Iterator[list[RecordedEvent]]:
    """Yield the events in batches that end with a step; add lines that are none to `left`.

    An incomplete last line is ignored: the process was killed while writing it.
    """
    batch: list[RecordedEvent] = []
    with file.open("rb") as lines:
        for line in lines:
            if item := _item(line):
                batch.append(item)
                if isinstance(item.event, ev.StepFinished) or len(batch) >= CHUNK:
                    yield batch
                    batch = []
            elif line.endswith(b"\n"):
                left.append(line)
    if batch:
        yield batch


def _line(item: RecordedEvent) -> bytes:
    data = {"seq": item.seq, "at": item.at, "event": ev.to_json(item.event)}
    return json.dumps(data, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _item(line: bytes) -> RecordedEvent | None:
    data = _fields(line)
    try:
        seq, event = _number(data), ev.from_json(data["event"])
        return RecordedEvent(seq, float(data["at"]), event) if seq else None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None


def _fields(line: bytes) -> dict[str, Any]:
    """Return the fields of a line; none if it is no JSON object."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _number(fields: Mapping[str, Any]) -> int:
    """Return the sequence number of a line; 0 if it has none that SQLite accepts."""
    seq = fields.get("seq")
    return seq if isinstance(seq, int) and 0 < seq < 2**62 else 0


def _complaint(left: Sequence[bytes], file: Path) -> str:
    if not left:
        return ""
    events = (_fields(line).get("event") for line in left)
    names = {str(event.get("event")) if isinstance(event, dict) else "?" for event in events}
    return (
        f"{len(left)} spilled events cannot be imported by this version "
        f"({', '.join(sorted(names))}) and stay in {file}: "
        "upgrade grpo-tui, or delete the file to give them up"
    )


def _replace(file: Path, left: Sequence[bytes]) -> None:
    """Leave only these lines of a file, each once."""
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
