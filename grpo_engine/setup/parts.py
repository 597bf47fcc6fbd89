"""The tasks of a run: loaded by their settings, and opened, each with rewards of its own."""

from collections.abc import Callable, Sequence
from pathlib import Path

from grpo_engine.config.settings import AlgorithmConfig, CheckpointConfig, FurtherTask, RunConfig
from grpo_engine.control import Control
from grpo_engine.environments.client import specs_of
from grpo_engine.errors import ConfigError
from grpo_engine.frozen import frozen
from grpo_engine.rewards.client import RewardClient
from grpo_engine.rewards.scorer import Scorer
from grpo_engine.rewards.specs import check_options
from grpo_engine.rewards.specs import specs_of as rewards_of
from grpo_engine.rollouts.prompts import PromptRenderer
from grpo_engine.run.session import TaskPart
from grpo_engine.run.user_objects import UserObjects
from grpo_engine.tasks.base import Task, load_task


@frozen
class LoadedTask:
    """A task, and the run's settings as they are for it."""

    label: str
    config: RunConfig
    task: Task
    weight: float = 1.0


def load_tasks(config: RunConfig, objects: UserObjects) -> list[LoadedTask]:
    """The run's task, then the further ones that have a weight."""
    first = LoadedTask(label=config.task.name, config=config, task=objects.load_task(config.task))
    tasks = [first]
    for label, further in config.task.others.items():
        if further.weight:
            task = load_task(further)
            settings = _settings_of(config, further, task)
            tasks.append(LoadedTask(label=label, config=settings, task=task, weight=further.weight))
    demonstrates = config.algorithm.resolved().demonstrates
    for loaded in tasks if len(tasks) > 1 or demonstrates else ():
        if specs_of(loaded.config, loaded.task)[1]:
            other = f"with recipe {config.algorithm.recipe}" if demonstrates else "beside others"
            raise ConfigError(
                f"task {loaded.label} has tools or an environment, and cannot be trained {other}; "
                "choose another task, or train it alone by another recipe",
                "task.others",
                "algorithm.recipe",
                "task.environment",
            )
    return tasks


def check_reward_options(config: RunConfig, tasks: Sequence[LoadedTask]) -> None:
    """Refuse options of reward functions that no task of a new run has."""
    specs = (spec for loaded in tasks for spec in rewards_of(loaded.config, loaded.task))
    check_options(config, dict.fromkeys(spec.name for spec in specs))


def _settings_of(config: RunConfig, further: FurtherTask, task: Task) -> RunConfig:
    """The settings of a run for a further task.

    Without rewards of its own in the settings or in the task, it has the run's.
    """
    rewards, algorithm = config.rewards, config.algorithm.model_dump(exclude_unset=True)
    algorithm["options"] = {k: v for k, v in config.algorithm.options.items() if k != "refill_on"}
    if further.rewards or task.default_rewards:
        functions, weights = tuple(further.rewards), tuple(further.rewards.values())
        rewards = rewards.model_copy(update={"functions": functions, "weights": weights})
    return config.model_copy(
        update={
            "task": further,
            "rewards": rewards,
            "evaluation": config.evaluation.model_copy(update={"accuracy": further.accuracy}),
            # Refills, the best checkpoint and the end may name rewards of another task.
            "algorithm": AlgorithmConfig(**algorithm),
            "checkpoint": CheckpointConfig(),
            "stop_when": "",
        }
    )


def open_parts(
    tasks: Sequence[LoadedTask],
    renders: Sequence[PromptRenderer],
    folder: Path,
    control: Control,
    objects: UserObjects,
    enter: Callable[[RewardClient], RewardClient],
    environments: Sequence[str] | None,
    *,
    foreign: bool,
) -> list[TaskPart]:
    """Start each task's reward process; `enter` sees to it that they end."""
    return [
        TaskPart(
            label=loaded.label,
            weight=loaded.weight,
            task=render.task,
            render=render,
            scorer=Scorer(
                loaded.config,
                render.task,
                folder / f"task-{index}" if index else folder,
                control,
                enter,
                local=objects.rewards,
                environments=environments,
                foreign=foreign,
            ),
            further=bool(index),
        )
        for index, (loaded, render) in enumerate(zip(tasks, renders, strict=True))
    ]
