"""A run's true status: the stored status, checked against its process and progress."""

from typing import Any

from grpo_tui.experiments.db.machine import boot_id, host_name, is_alive
from grpo_tui.experiments.db.texts import seconds

BEAT_S = 30.0
STALL_S = 60.0

Derived = tuple[str, str | None]


def derive(attempt: Any, now: float) -> Derived:
    """Return the status of an active run, and since when it holds if it was inferred.

    `attempt` is a row of the last attempt with the run's status, seconds and steps. A live process
    without progress is stalled, a process that is gone lost, and one on another host without a
    fresh heartbeat unknown.
    """
    stored, step_s = attempt.status, attempt.elapsed / attempt.step if attempt.step else 0.0
    if attempt.ended_at is not None:
        return "aborted", attempt.ended_at
    if attempt.host != host_name():
        fresh = now - seconds(attempt.heartbeat) < BEAT_S
        return (stored, None) if fresh else ("unknown", attempt.heartbeat)
    if attempt.boot != boot_id() or not is_alive(attempt.pid, attempt.pid_start):
        return "lost", attempt.heartbeat
    if stored == "running" and now - seconds(attempt.progress_at) > max(STALL_S, 5 * step_s):
        return "stalled", attempt.progress_at
    return stored, None
