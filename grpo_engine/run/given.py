"""Python objects that a run was given by its caller; its settings only name them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from grpo_engine.config.settings import TaskConfig
from grpo_engine.names import IN_PROCESS, keyword_of
from grpo_engine.tasks.base import Task, load_task


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A task, rewards, tools and environments that no other process can import.

    `rewards` has functions by their name in `rewards.functions`, `environments` tools and
    environments by theirs in `task`; `task` is a `Task`, a function or rows.
    """

    task: Any = None
    rewards: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    environments: Mapping[str, Any] = field(default_factory=dict)

    def load_task(self, config: TaskConfig) -> Task:
        """The task that was given, else the one that the settings name."""
        if self.task is None:
            return load_task(config)
        from grpo_engine.tasks.code import task_of

        return task_of(config, self.task)

    def note(self, config: TaskConfig) -> str:
        """What of users' code runs in this process, and what that means; empty if nothing does."""
        names = {"reward": list(self.rewards)}
        if self.environments:  # if one of them runs in this process, all do
            names |= {
                "tool": list(config.tools),
                "environment": list(filter(None, config.environments.values())),
            }
        names = {role: items for role, items in names.items() if items}
        if not names:
            return ""
        listed = " and ".join(
            f"{role}{'s' if len(items) > 1 else ''} "
            + ", ".join(name.removeprefix(IN_PROCESS) for name in items)
            for role, items in names.items()
        )
        keywords = ", ".join(
            keyword_of(role)
            for role, items in names.items()
            if any(name.startswith(IN_PROCESS) for name in items)
        )
        is_single = sum(map(len, names.values())) == 1
        return (
            f"{listed} {'runs' if is_single else 'run'} in this Python process, because "
            f"{'it' if is_single else 'they'} cannot be imported in a process of "
            f"{'its' if is_single else 'their'} own: there is no time limit, and only "
            f"grpo_engine.resume(run, {keywords}) resumes the run"
        )


NOTHING = Given()
