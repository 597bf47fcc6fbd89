"""`verifiers:<package>`: the data of an environment for verifiers 0.1, with that environment.

`task.options` are the arguments of its `load_environment`; `task.interpreter` is the Python that
has the package.
"""

from dataclasses import replace
from math import inf
from typing import Any, Final

from grpo_engine.config.settings import TaskConfig
from grpo_engine.errors import DataError
from grpo_engine.platform.scratch import scratch
from grpo_engine.sandbox.client import Call, Sandbox
from grpo_engine.tasks.base import Task
from grpo_engine.tasks.files import Problems, task_of_splits
from grpo_engine.tasks.rows import BadRows, Row

SERVICE: Final = "grpo_engine.environments.verifiers:Rows"
LIMIT_S: Final = 600.0  # a package may download its data


def build(config: TaskConfig) -> Task:
    """Build the task of a package; its own process loads it."""
    bad = BadRows(config)
    splits = {
        split: [
            Row(row, f"{config.name} ({split}), row {number}") for number, row in enumerate(rows, 1)
        ]
        for split, rows in _splits(config).items()
    }
    if "train" not in splits:
        splits = {"train": splits["eval"]}
    task = task_of_splits(config, splits, config.name, bad, Problems(rewards=()))
    return replace(task, environment=config.name)


def _splits(config: TaskConfig) -> dict[str, list[dict[str, Any]]]:
    arguments = {"name": config.name, "options": dict(config.options)}
    call = Call("read", arguments, LIMIT_S)
    with (
        scratch("verifiers") as folder,
        Sandbox(SERVICE, folder, "rows", interpreter=config.interpreter, memory=inf) as sandbox,
    ):
        result = sandbox.ask(call)
        failure = result.failure
        if failure is None:
            return dict(result.value)
        if failure.cause == "timeout":
            failure = replace(failure, message=f"gave no data within {LIMIT_S:g} s")
        message = sandbox.describe(failure)
    if failure.cause == "exception":
        raise DataError(message, "task.name", "task.interpreter")
    raise DataError(f"{config.name}: {message}", "task.interpreter")
