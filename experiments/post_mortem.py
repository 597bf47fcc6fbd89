"""What is known about a run that ended without reporting it."""

from pathlib import Path
from typing import Any

from sqlalchemy import select

from grpo_engine import events as ev
from grpo_tui.experiments import values as v
from grpo_tui.experiments.db.machine import boot_id, host_name
from grpo_tui.experiments.db.paths import fault_file, log_file, run_folder, running_file
from grpo_tui.experiments.db.tables import ATTEMPT, EVENT, RUN
from grpo_tui.experiments.db.texts import iso, visible
from grpo_tui.experiments.reader import StoreReader

LINES = 20
# Events that go into a log, each with the field that describes what happened.
LOGGED = {
    "NoteWritten": "text",
    "AlertRaised": "explanation",
    "RunFailed": "message",
    "CheckpointSaved": "path",
}


def post_mortem(reader: StoreReader, run: int) -> v.PostMortem:
    """Return the last step, checkpoint, steps to redo, likely cause and last log lines."""
    folder = run_folder(reader.path, reader.short_id(run))
    ((last, error),) = reader.rows(select(RUN.c.step, RUN.c.error).filter_by(id=run))
    query = select(EVENT.c.payload).filter_by(run_id=run, kind="CheckpointSaved")
    saved = [
        event.step
        for event in reader.column(query.where(EVENT.c.step <= last))
        if isinstance(event, ev.CheckpointSaved)
        # Only the last parts of the path hold: the store may have moved.
        and Path(folder, *Path(event.path).parts[-2:]).exists()
    ]
    attempt = reader.row(select(ATTEMPT).filter_by(run_id=run).order_by(ATTEMPT.c.n.desc()))
    return v.PostMortem(
        last_step=last,
        checkpoint_step=max(saved, default=None),
        steps_to_redo=last - max(saved, default=0),
        last_seen=attempt.heartbeat if attempt else "",
        cause=_cause(error, folder, attempt) if attempt else "no process ever started it",
        log_lines=tail(log_file(folder), LINES) or log_lines(reader, run),
    )


def log_lines(reader: StoreReader, run: int, lines: int = LINES) -> tuple[str, ...]:
    """Return the last notes, alerts and errors that a run recorded, with their times."""
    rows = reader.rows(
        select(EVENT.c.at, EVENT.c.payload)
        .where(EVENT.c.kind.in_(LOGGED))
        .filter_by(run_id=run)
        .order_by(EVENT.c.seq.desc())
        .limit(lines)
    )
    # In an edited store an event may be of another kind than its row says.
    return tuple(
        f"{iso(at)} step {event.step}: {getattr(event, LOGGED.get(ev.kind_of(event), 'step'))}"
        for at, event in reversed(rows)
    )


def _cause(error: str, folder: Path, attempt: Any) -> str:
    used, free = attempt.rss_gb, attempt.free_gb
    if error or attempt.cause or attempt.ended_at:
        return error or attempt.cause or "its process exited without reporting an end"
    if fault := _fault(fault_file(folder)):
        return fault
    if running := tail(running_file(folder), 1):
        return f"{visible(running[0])}, which may have called os._exit or was killed there"
    if attempt.host != host_name():
        return f"unknown: it ran on {attempt.host}, which cannot be checked from this machine"
    if attempt.boot != boot_id():
        return "the machine restarted while it ran"
    if 0 < free < 0.05 * (used + free):
        return f"probably out of memory: it used {used:.1f} GB and {free:.1f} GB were free"
    return (
        "its process was killed (kill -9, the terminal or the system), "
        f"last sign of life at {attempt.heartbeat}"
    )


def tail(path: Path, lines: int, end: int | None = None) -> tuple[str, ...]:
    """Return the last lines of a file, or of its first `end` bytes; none if there is no file."""
    if not path.is_file():  # a pipe blocks, and a device has no end
        return ()
    try:
        with path.open("rb") as log:
            end = log.seek(0, 2) if end is None else end
            start = log.seek(max(0, end - 400 * lines))
            text = log.read(end - start).decode("utf-8", "replace")
    except OSError:
        return ()
    return tuple(text.splitlines()[-lines:])


def _fault(path: Path) -> str:
    """Return the crash that faulthandler reported; empty if it reported none."""
    for line in tail(path, 200):
        if line.startswith("Fatal Python error"):
            return f"its process crashed: {line.removeprefix('Fatal Python error: ')}"
    return ""
