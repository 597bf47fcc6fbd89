"""Snapshot: a run at one moment, in frozen values; the only input of the panels."""

import math
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any, Literal

from grpo_engine import events as ev
from grpo_engine.frozen import frozen
from grpo_engine.run_health import Evidence, Health
from grpo_tui.app.charts.series import Series
from grpo_tui.experiments.values import AlertView, BoardGroup, BoardRollout, BoardView

Status = Literal[
    "empty", "loading", "running", "paused", "completed", "stopped", "aborted", "failed", "lost"
]
Request = Literal["", "pause", "continue", "stop_after_step", "stop_now", "checkpoint"]

ENDED = ("completed", "stopped", "aborted", "failed", "lost")
EMPTY_BOARD = BoardView()
NOTHING_YET = Health(label="too early", reason="No step is done yet.")


# A group is drawn from the board until it is recorded, then from its event.
StepGroup = BoardGroup | ev.Group
StepRollout = BoardRollout | ev.Rollout


@frozen
class LogLine:
    """A line of the log; `at` is wall time, None if unknown."""

    at: float | None
    step: int
    severity: ev.Severity
    text: str


@frozen
class Head:
    """The names and settings at the top of a screen."""

    id: str = ""
    name: str = ""
    model: str = ""
    recipe: str = ""
    total_steps: int = 0
    config: Mapping[str, Any] = field(default_factory=dict)
    recorded: float = 0.0  # length of a recording in seconds
    speed: float = 1.0  # of its replay


@frozen
class Snapshot:
    """A run at one moment; the only input of the panels."""

    head: Head = field(default_factory=Head)
    status: Status = "empty"
    requested: Request = ""
    step: int = 0
    current_step: int = 0
    board: BoardView = EMPTY_BOARD
    step_seconds: float | None = None
    eta: float | None = None
    elapsed: float = 0.0  # seconds of training steps
    worked: float = 0.0  # seconds of wall time, evaluations included; 0 if not known
    tokens_per_second: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    series: Mapping[str, Series] = field(default_factory=dict)
    reading: bool = False  # recorded events are still being read
    groups: tuple[StepGroup, ...] = ()
    groups_step: int = 0
    trained: tuple[ev.Group, ...] = ()  # the latest with scores and advantages
    trained_step: int = 0
    updated: tuple[ev.Group, ...] = ()  # those of `step`, which its metrics are of
    signal: tuple[tuple[int, float], ...] = ()  # share of groups with signal, by step
    alerts: tuple[AlertView, ...] = ()
    log: tuple[LogLine, ...] = ()
    paused_for: str = ""  # why the engine paused by itself
    paused_at: float | None = None  # wall time
    failure: ev.RunFailed | None = None
    checkpoint: int | None = None  # the step from which a lost run can be resumed
    evidence: Evidence = Evidence(step=0, active=False)
    health: Health = NOTHING_YET  # by these facts

    @property
    def active(self) -> bool:
        """Whether an engine is working on the run."""
        return self.status in ("loading", "running", "paused")

    @property
    def scored(self) -> "Snapshot":
        """With the groups that were scored last, if the current ones have no scores."""
        if not self.trained or any(isinstance(group, ev.Group) for group in self.groups):
            return self
        return replace(self, groups=self.trained, groups_step=self.trained_step)

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each reward function in the latest scores; NaN if it is not known."""
        rollouts = self.trained[0].rollouts[:1] if self.trained else ()
        return {reward.name: reward.weight for item in rollouts for reward in item.rewards}

    @property
    def reward_curves(self) -> dict[str, Series]:
        """The mean of each reward function."""
        return {
            key.removeprefix("rewards/").removesuffix("/mean"): series
            for key, series in self.series.items()
            if key.startswith("rewards/") and key.endswith("/mean")
        }

    @property
    def moves(self) -> dict[str, float]:
        """The part of each reward function in the change of the reward: weight × change of mean."""
        weights = self.weights
        return {
            name: weights.get(name, 1.0) * (series.value - series.start)
            for name, series in self.reward_curves.items()
        }

    @property
    def mover(self) -> str:
        """The reward function that moved the reward most; empty if there is only one."""
        moves = {name: abs(by) for name, by in self.moves.items() if by and math.isfinite(by)}
        return max(moves, key=moves.__getitem__) if moves and len(self.moves) > 1 else ""

    @property
    def open_alerts(self) -> tuple[AlertView, ...]:
        """Unmuted alerts that hold, or that held in the last ten steps and did not end."""
        return tuple(alert for alert in self._recent_alerts if not alert.muted)

    @property
    def muted_alerts(self) -> tuple[AlertView, ...]:
        """Muted alerts among the recent ones."""
        return tuple(alert for alert in self._recent_alerts if alert.muted)

    @property
    def _recent_alerts(self) -> tuple[AlertView, ...]:
        recent = (alert for alert in self.alerts if alert.is_recent(self.step))
        return tuple(alert for alert in recent if not alert.ended)
