"""Python objects that a run was given by its caller; its settings only name them."""

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Any

from grpo_engine.config.custom import Custom
from grpo_engine.config.recipes import Recipe
from grpo_engine.config.settings import AlgorithmConfig, TaskConfig
from grpo_engine.frozen import frozen
from grpo_engine.names import IN_PROCESS, keyword_of
from grpo_engine.tasks.base import Task, load_task


@frozen
class UserObjects:
    """A task, rewards, tools and environments that no other process can import.

    `rewards` has functions by their name in `rewards.functions`, `environments` tools and
    environments by theirs in `task`; `task` is a `Task`, a function or rows.
    """

    task: Any = None
    rewards: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    environments: Mapping[str, Any] = field(default_factory=dict)
    functions: Mapping[str, Any] = field(default_factory=dict)  # choices of the recipe

    def recipe(self, config: AlgorithmConfig) -> Recipe:
        """The recipe of the settings, with the functions that were given for its choices."""
        recipe = config.resolved()
        changes: dict[str, Any] = {
            choice: Custom(name, self.functions[name])
            for choice, name in recipe.functions.items()
            if name in self.functions
        }
        return replace(recipe, **changes)

    def load_task(self, config: TaskConfig) -> Task:
        """The task that was given, else the one that the settings name."""
        if self.task is None:
            return load_task(config)
        from grpo_engine.tasks.code import task_of

        return task_of(config, self.task)

    def note(self, config: TaskConfig) -> str:
        """What of users' code runs in this process, and what that means; empty if nothing does."""
        names = {
            "reward": list(self.rewards),
            "function": list(self.functions),
        }
        if self.environments:  # one local object makes all of them local
            names["tool"] = list(config.tools)
            names["environment"] = list(filter(None, config.environments.values()))
        texts = [
            f"{noun}{'s' * (len(group) > 1)} {', '.join(n.removeprefix(IN_PROCESS) for n in group)}"
            for noun, group in names.items()
            if group
        ]
        if not texts:
            return ""
        keywords = ", ".join(
            keyword_of(noun)
            for noun, group in names.items()
            if any(name.startswith(IN_PROCESS) for name in group)
        )
        is_single = sum(map(len, names.values())) == 1
        return (
            f"{' and '.join(texts)} {'runs' if is_single else 'run'} in this Python process, "
            f"because {'it' if is_single else 'they'} cannot be imported in a process of "
            f"{'its' if is_single else 'their'} own: there is no time limit, and only "
            f"grpo_engine.resume(run, {keywords}) resumes the run"
        )


NO_OBJECTS = UserObjects()
