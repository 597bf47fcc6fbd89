"""What waits for a run: requests to it, and runs in the queue. Frozen values of plain Python."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlView:
    """A request to a run and what became of it, in words under `message`."""

    key: int
    run: int
    verb: str
    asked_at: str
    taken_at: str | None
    outcome: Literal["", "done", "expired", "refused"]
    state: Literal["asked", "taken", "done", "expired", "no answer"]
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueItemView:
    """A run that waits for its turn, or had it."""

    key: int
    sweep: str | None
    name: str
    state: Literal["queued", "leased", "done", "failed", "skipped", "cancelled"]
    settings: Mapping[str, Any]
    config: Mapping[str, Any]
    lease_owner: str
    lease_until: float | None
    run: str | None
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepView:
    """A grid of settings and seeds and how far it is."""

    id: str
    name: str
    created_at: str
    axes: Mapping[str, tuple[Any, ...]]
    items: tuple[QueueItemView, ...]
