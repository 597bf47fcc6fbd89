"""`verifiers:<package>`: the tasks of a taskset for verifiers 0.4, with that taskset.

`task.options` are those of `vf-eval`; `task.interpreter` is the Python that has the package.
"""

from dataclasses import replace
from math import inf
from typing import Any, Final

from grpo_engine.config.settings import TaskConfig
from grpo_engine.errors import DataError
from grpo_engine.sandbox.client import ServiceCall, call_once
from grpo_engine.tasks.base import Task
from grpo_engine.tasks.files import Problems, task_of_splits
from grpo_engine.tasks.rows import BadRows, DataRow

SERVICE: Final = "grpo_engine.environments.verifiers:TasksetRows"
LIMIT_S: Final = 600.0  # a package may download its data


def build(config: TaskConfig) -> Task:
    """Build the task of a package; its own process loads it."""
    rows = [
        DataRow(row, f"{config.name}, task {number}") for number, row in enumerate(_rows(config), 1)
    ]
    problems = Problems(rewards=())
    task = task_of_splits(config, {"train": rows}, config.name, BadRows(config), problems)
    return replace(task, environment=config.name)


def _rows(config: TaskConfig) -> list[dict[str, Any]]:
    arguments = {"name": config.name, "options": dict(config.options)}
    call = ServiceCall("read", arguments, LIMIT_S, loads=config.name)
    token = ("HF_TOKEN",)  # It may download, and runs no code of a model.
    call_once(SERVICE, "verifiers", call, interpreter=config.interpreter, memory=inf, named=token)
    return list(call.value_or(lambda text: DataError(text, "task.name", "task.interpreter")))
