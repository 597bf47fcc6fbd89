"""Python objects that a run was given by its caller; its settings only name them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from grpo_engine.config.settings import TaskConfig
from grpo_engine.tasks.base import Task, load_task


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A task and reward functions that no other process can import.

    `rewards` has them by their name in `rewards.functions`; `task` is a `Task`, a function or rows.
    """

    task: Any = None
    rewards: Mapping[str, Callable[..., Any]] = field(default_factory=dict)

    def load_task(self, config: TaskConfig) -> Task:
        """The task that was given, else the one that the settings name."""
        if self.task is None:
            return load_task(config)
        from grpo_engine.tasks.code import task_of

        return task_of(config, self.task)

    def note(self) -> str:
        """Which rewards run in this process, and what that means; empty if none does."""
        if not self.rewards:
            return ""
        from grpo_engine.names import GIVEN

        own = ", ".join(name.removeprefix(GIVEN) for name in self.rewards)
        one = len(self.rewards) == 1
        return (
            f"{'reward' if one else 'rewards'} {own} {'runs' if one else 'run'} in this Python "
            f"process, because {'it' if one else 'they'} cannot be imported in the reward process: "
            "there is no time limit, and only grpo_engine.resume(run, rewards=[…]) resumes the run"
        )


NOTHING = Given()
