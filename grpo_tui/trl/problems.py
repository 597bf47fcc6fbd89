"""A task's problems and reward functions in the form that TRL's trainer takes.

Scripts that `grpo-tui config export --to trl` writes read them here, so that both trainers have the
same data, the same held-out split and the same rewards.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from grpo_engine.config.parse import build
from grpo_engine.errors import ConfigError, nearest
from grpo_engine.frozen import frozen
from grpo_engine.policy.embedded import EMBEDDED
from grpo_engine.rewards.load import LoadedReward, load_reward
from grpo_engine.rewards.right import Right
from grpo_engine.rewards.specs import specs_of
from grpo_engine.rollouts.prompts import conversation, reward_prompt
from grpo_engine.tasks.answers import texts_of
from grpo_engine.tasks.base import Example, Task, load_task
from grpo_tui.trl.steps import KEY, TARGET

MOST_ROWS = 20_000  # of a task that makes problems without an end


@frozen
class Problems:
    """Rows of a data set with TRL's column `prompt`, and what scores their answers."""

    train: list[dict[str, Any]]
    held_out: list[dict[str, Any]]
    functions: list[Callable[..., Any]]
    weights: list[float]
    accuracy: str  # the rule for right answers; empty if there is none


def problems(settings: Mapping[str, Any]) -> Problems:
    """The problems and reward functions of settings: sections `task`, `rewards`, `evaluation`."""
    config = build(settings)
    task = load_task(config.task)
    specs = specs_of(config, task)
    if not specs:
        raise ConfigError(
            f"task {task.name} brings no reward functions; set rewards.functions",
            "rewards.functions",
        )
    loaded = [load_reward(spec.name, spec.options) for spec in specs]
    right = Right.of(config.evaluation.accuracy, task.accuracy, [item.name for item in loaded])
    as_text = config.rewards.completions == "text"
    return Problems(
        train=_rows(task, itertools.islice(task.train, MOST_ROWS)),
        held_out=_rows(task, task.held_out[: config.evaluation.problems]),
        functions=[_function(item, as_text=as_text) for item in loaded],
        weights=[spec.weight for spec in specs],
        accuracy=f"{right.function} {right.op} {right.limit}" if right.function else "",
    )


def model(name: str) -> str:
    """The folder of a model that comes with this program, which transformers can load."""
    if name not in EMBEDDED:
        raise ConfigError(f"{name!r} is none of {', '.join(EMBEDDED)}{nearest(name, EMBEDDED)}")
    return str(EMBEDDED[name])


def _rows(task: Task, examples: Iterable[Example]) -> list[dict[str, Any]]:
    return [
        {
            **example.columns,
            "prompt": reward_prompt(conversation(task, example)),
            KEY: example.key,
            TARGET: example.target,
        }
        for example in examples
    ]


def _function(reward: LoadedReward, *, as_text: bool) -> Callable[..., Any]:
    """The function under its name, with its options and the columns that it reads."""

    def keywords(arguments: Mapping[str, Any]) -> dict[str, Any]:
        if as_text:
            arguments = {**arguments, "completions": texts_of(arguments["completions"])}
        return reward.keywords(arguments)

    if reward.is_async:

        async def later(**arguments: Any) -> Any:
            return await reward.function(**keywords(arguments))

        later.__name__ = reward.name
        return later

    def scores(**arguments: Any) -> Any:
        return reward.function(**keywords(arguments))

    scores.__name__ = reward.name
    return scores
