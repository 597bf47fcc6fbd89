"""What is known about a run that ended without reporting it."""

from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import select

from grpo_engine import events as ev
from grpo_tui.experiments import values as v
from grpo_tui.experiments.db.machine import boot_id, host_name
from grpo_tui.experiments.db.paths import fault_file, log_file, run_folder
from grpo_tui.experiments.db.tables import ATTEMPT, EVENT, RUN
from grpo_tui.experiments.db.texts import ago, iso, seconds
from grpo_tui.experiments.read.metrics import MetricQuestions

LINES = 20
LOGGED = ("NoteWritten", "AlertRaised", "RunFailed", "CheckpointSaved")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt(v.AttemptView):
    """An attempt with what tells why its process ended."""

    boot: str
    rss_gb: float
    free_gb: float
    slept_s: float


class PostMortemQuestions(MetricQuestions):
    """The last signs of a run, and what is needed to resume it."""

    def post_mortem(self, run: int) -> v.PostMortem:
        """Return the last step, checkpoint, steps to redo, likely cause and last log lines."""
        folder = run_folder(self.path, self._short(run))
        ((last, error),) = self._all(select(RUN.c.step, RUN.c.error).where(RUN.c.id == run))
        saved = [item for item in self.checkpoints(run) if item.exists and item.step <= last]
        newest = max(saved, key=lambda item: item.step, default=None)
        query = self._select(Attempt, ATTEMPT).where(ATTEMPT.c.run_id == run)
        attempts = self._views(Attempt, query.order_by(ATTEMPT.c.n.desc()).limit(1))
        attempt = attempts[0] if attempts else None
        return v.PostMortem(
            run=run,
            last_step=last,
            checkpoint_step=newest.step if newest else None,
            checkpoint_path=newest.path if newest else None,
            steps_to_redo=last - (newest.step if newest else 0),
            last_seen=attempt.heartbeat if attempt else "",
            cause=_cause(error, folder, attempt) if attempt else "no process ever started it",
            log_lines=tail(log_file(folder), LINES) or self.log_lines(run),
        )

    def log_lines(self, run: int, lines: int = LINES) -> tuple[str, ...]:
        """Return the last notes, alerts and errors that a run recorded, with their times."""
        rows = self._all(
            select(EVENT.c.at, EVENT.c.payload)
            .where(EVENT.c.run_id == run, EVENT.c.kind.in_(LOGGED))
            .order_by(EVENT.c.seq.desc())
            .limit(lines)
        )
        return tuple(f"{iso(at)} step {event.step}: {_text(event)}" for at, event in reversed(rows))


def _text(event: ev.Event) -> str:
    match event:
        case ev.NoteWritten(text=text) | ev.RunFailed(message=text):
            return text
        case ev.AlertRaised(explanation=text):
            return text
        case ev.CheckpointSaved(path=path):
            return f"checkpoint {path}"
    return ev.kind_of(event)


def _cause(error: str, folder: Path, attempt: Attempt) -> str:
    held, left = attempt.rss_gb, attempt.free_gb
    if error or attempt.cause or attempt.ended_at:
        return error or attempt.cause or "its process exited without reporting an end"
    if fault := _fault(fault_file(folder)):
        return fault
    if attempt.host != host_name():
        return f"unknown: it ran on {attempt.host}, which cannot be checked from this machine"
    if attempt.boot != boot_id():
        return "the machine restarted while it ran"
    parts = []
    if 0 < left < 0.05 * (held + left):
        parts.append(f"probably out of memory: it held {held:.1f} GB and {left:.1f} GB were left")
    if attempt.slept_s > 0:
        parts.append(f"the machine was suspended for {attempt.slept_s:.0f} s while it ran")
    if not parts:
        parts.append(
            "its process was killed (kill -9, the terminal or the system), "
            f"last sign of life at {attempt.heartbeat}"
        )
    return "; ".join(parts)


def tail(path: Path, lines: int, end: int | None = None) -> tuple[str, ...]:
    """Return the last lines of a file, or of its first `end` bytes; none if there is no file."""
    try:
        with path.open("rb") as log:
            end = log.seek(0, 2) if end is None else end
            start = log.seek(max(0, end - 400 * lines))
            text = log.read(end - start).decode("utf-8", "replace")
    except OSError:
        return ()
    return tuple(text.splitlines()[-lines:])


def _fault(path: Path) -> str:
    """Return the crash that faulthandler reported, as a phrase; empty if it reported none."""
    for line in tail(path, 200):
        if line.startswith("Fatal Python error"):
            return f"its process crashed: {line.removeprefix('Fatal Python error: ')}"
    return ""


def last_sign(heartbeat: str, now: float) -> str:
    """Say how long ago a run last gave a sign of life."""
    return f"last sign of life {ago(seconds(heartbeat), now)} ago"
