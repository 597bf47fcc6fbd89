"""Tasks from Python: a function that returns problems, a `Task`, or an iterable of rows.

A function gets `task.options` as keywords and returns a `Task`, rows, or rows by split. A row is a
mapping with a prompt and any other columns, as a line of a data file.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from grpo_engine import names
from grpo_engine.config.settings import TaskConfig
from grpo_engine.errors import DataError
from grpo_engine.tasks.base import Task, digest_of, digest_of_examples
from grpo_engine.tasks.files import task_of_splits
from grpo_engine.tasks.options import read_options
from grpo_engine.tasks.rows import BadRows, Row


def build(config: TaskConfig) -> Task:
    """Build the task of the function that `task.name` refers to."""
    names.refuse_given(config.name, "task")
    wanted = names.Wanted(f"task.name {config.name}", DataError)
    if ":" in config.name or config.name.endswith(".py"):
        found, _ = names.find(config.name, wanted)
    else:
        found = names.load(names.installed("tasks")[config.name], wanted)
    return task_of(config, found)


def task_of(config: TaskConfig, source: Any) -> Task:
    """Make the task of a function, a `Task`, rows, or rows by split."""
    if callable(source):
        source = source(**config.options)
    elif config.options:
        read_options(config, {})  # rows take no options
    if isinstance(source, Task):
        return _with_settings(config, source)
    splits = source if isinstance(source, Mapping) else {config.split: source}
    label = config.name.removeprefix(names.GIVEN)
    bad = BadRows(skip=config.bad_rows == "skip")
    rows = {name: _rows(part, f"{label} ({name})", bad) for name, part in splits.items()}
    return task_of_splits(config, rows, label, bad)


def _rows(source: Any, where: str, bad: BadRows) -> list[Row]:
    if isinstance(source, str | bytes) or not isinstance(source, Iterable):
        raise DataError(
            f"{where}: a task is a Task or an iterable of rows, not {type(source).__name__}"
        )
    rows = list(source)
    if not rows:
        raise DataError(f"{where} has no rows; give at least one")

    def made(index: int, row: Any) -> Row:
        if not isinstance(row, Mapping):
            raise DataError(
                f"{where}: row {index + 1} is {type(row).__name__} {str(row)[:60]!r}; a row is a "
                'mapping like {"prompt": …, "answer": …}'
            )
        return Row(dict(row), f"{where}: row {index + 1}")

    return bad.good(rows, made)


def _with_settings(config: TaskConfig, task: Task) -> Task:
    """Apply the settings that change a finished task."""
    train, held_out = task.train, task.held_out[: config.held_out_size]
    if config.train_size:
        train = train[: config.train_size]
    if not len(train):
        raise DataError(f"task {task.name} has no training problems; give at least one")
    return replace(
        task,
        train=train,
        held_out=held_out,
        fingerprint=task.fingerprint
        or digest_of([digest_of_examples(train), digest_of_examples(held_out)]),
        system_prompt=task.system_prompt if config.system_prompt is None else config.system_prompt,
        prefill=config.prefill or task.prefill,
        shuffle=task.shuffle and config.shuffle,
    )
