"""Problems of a built-in task, each with its answer and nothing else to learn by `sft`."""

from collections.abc import Mapping
from typing import Any

from grpo_engine.config.settings import TaskConfig
from grpo_engine.tasks.base import load_task

PROBLEMS = 3000


def solved(generator: str, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The first problems of a generator with these options, which any reward of it can score."""
    task = load_task(TaskConfig(name=generator, options=options, train_size=PROBLEMS))
    return [
        {"prompt": list(example.prompt), "completion": example.target, **example.columns}
        for example in task.train
    ]
