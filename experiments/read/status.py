"""A run's true status: the stored one, checked against its process and progress."""

import time
from dataclasses import dataclass
from typing import Any

from grpo_tui.experiments.db.machine import boot_id, host_name, is_alive
from grpo_tui.experiments.db.texts import seconds

BEAT_S = 30.0
STALL_S = 60.0

Derived = tuple[str, str | None]


@dataclass(frozen=True, slots=True)
class LifeSigns:
    host: str
    boot: str
    pid: int
    pid_start: str
    heartbeat: str
    progress_at: str
    ended_at: str | None


def derive(run: Any, signs: LifeSigns | None, now: float | None = None) -> Derived:
    """Return a run's status and, if it was inferred, since when it holds.

    Same boot and a live process but no progress: stalled. Process gone: lost. Other host without a
    fresh heartbeat: unknown.
    """
    stored, step_s = run.status, run.elapsed / run.step if run.step else 0.0
    if stored not in ("running", "paused") or signs is None:
        return stored, None
    if signs.ended_at is not None:
        return "aborted", signs.ended_at
    now = time.time() if now is None else now
    if signs.host != host_name():
        fresh = now - seconds(signs.heartbeat) < BEAT_S
        return (stored, None) if fresh else ("unknown", signs.heartbeat)
    if signs.boot != boot_id() or not is_alive(signs.pid, signs.pid_start):
        return "lost", signs.heartbeat
    if stored == "running" and now - seconds(signs.progress_at) > max(STALL_S, 5 * step_s):
        return "stalled", signs.progress_at
    return stored, None
