"""The state of a run."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import mlx.core as mx

from grpo_engine.alerts.state import Alerts
from grpo_engine.config.recipes import Recipe
from grpo_engine.config.settings import RunConfig
from grpo_engine.config.stop_when import Streak
from grpo_engine.control import Control
from grpo_engine.cpu.guard import ThreadGuard
from grpo_engine.distributed.ranks import Ranks
from grpo_engine.environments.dialogues import Environments
from grpo_engine.frozen import frozen
from grpo_engine.policy.memory import Lengths, MemoryPlan
from grpo_engine.policy.policy import Policy
from grpo_engine.rewards.scorer import Scorer
from grpo_engine.rollouts.prompts import PromptRenderer
from grpo_engine.rollouts.types import Sampling
from grpo_engine.run.backend import Backend, Snapshot
from grpo_engine.run.clock import Clock
from grpo_engine.tasks.base import Example, Task, fingerprint_of


@dataclass(slots=True, kw_only=True)
class Progress:
    """Progress of a run; stored in checkpoints as it is."""

    step: int = 0
    cursor: int = 0  # index into the order of the training problems
    cursors: dict[str, int] = field(default_factory=dict)  # cursors of further tasks
    drawn: dict[str, int] = field(default_factory=dict)  # number of prompts by task
    # Right and tried rollouts by key; fractions if read from a file.
    rates: dict[str, tuple[int | float, int | float]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)  # keys of problems that are not drawn
    tokens: int = 0
    elapsed: float = 0.0
    entropy_bonus: float = 0.0  # weight in the loss
    entropy_control: float = 0.0  # the controller's state, if entropy has a target
    bad_updates: int = 0  # consecutive updates that were not finite
    failed_steps: int = 0  # consecutive steps in which every environment failed
    evaluated_before: bool = False
    best_step: int | None = None
    best_score: float | None = None
    best_metric: str = ""  # metric of best_score; older checkpoints lack it
    pins: list[Example] = field(default_factory=list)
    watched: dict[str, Streak] = field(default_factory=dict)  # keys are the texts of checks
    ended_by: str = ""  # the condition of stop_when that ended the run


@frozen
class TaskPart:
    """One of a run's tasks, with its own prompts and rewards."""

    label: str
    task: Task
    render: PromptRenderer
    scorer: Scorer
    weight: float = 1.0
    further: bool = False  # not the run's first task

    def held_out(self, count: int) -> list[Example]:
        return [self.labelled(example) for example in self.task.held_out[:count]]

    def labelled(self, example: Example) -> Example:
        """The problem with the task's label, which keeps apart the keys of several tasks."""
        if not self.further:
            return example
        return replace(example, key=f"{self.label}/{example.key}", task=self.label)


@dataclass(slots=True, kw_only=True)
class EngineRun:
    config: RunConfig
    recipe: Recipe
    control: Control
    folder: Path
    policy: Policy
    parts: Sequence[TaskPart]  # the run's task, then further ones
    backend: Backend
    alerts: Alerts
    sampling: Sampling
    lengths: Lengths
    plan: MemoryPlan
    threads: int
    environments: Environments | None = None
    ranks: Ranks = field(default_factory=Ranks)
    progress: Progress = field(default_factory=Progress)
    sampler_weights: dict[str, mx.array] | None = (
        None  # None unless the sampler lags behind the policy
    )
    trained_examples: dict[str, Example] = field(default_factory=dict)  # by key; they can be pinned
    clock: Clock = field(default_factory=Clock)
    thread_guard: ThreadGuard = field(default_factory=ThreadGuard)
    saved_step: int | None = None  # step of the newest checkpoint
    unsaved: str = ""  # why the newest checkpoint could not be written, until one can
    step_state: Snapshot | None = None  # the state before the step, while one is made
    is_planned_anew: bool = False  # whether the memory plan changed during this step
    is_changing: bool = False  # whether weights are those in the middle of a step
    last_metrics: dict[str, float] = field(default_factory=dict)
    earlier_peak: int = 0  # bytes, before a step's backward passes
    update_peak: int = 0  # bytes, from these on

    @property
    def fingerprint(self) -> str:
        """A hash of the problems of all tasks."""
        return fingerprint_of([part.task for part in self.parts])

    def part_of(self, example: Example) -> TaskPart:
        return next((p for p in self.parts if p.further and p.label == example.task), self.parts[0])

    @property
    def step(self) -> int:
        return self.progress.step

    @property
    def is_complete(self) -> bool:
        """Whether the last finished step was the run's last."""
        return self.step >= self.config.steps or bool(self.progress.ended_by)

    @property
    def has_reference(self) -> bool:
        """Whether a reference policy scores answers, for the recipe or to record KL."""
        recipe = self.recipe
        is_read = recipe.anchor != "none" or recipe.reads("ref_logprobs_BT")
        return is_read or self.config.record.kl


def is_stopping(run: EngineRun) -> bool:
    """Whether the run ends after this step; rank 0 decides for all."""
    return bool(run.ranks.broadcast(run.control.stop_after_step))
