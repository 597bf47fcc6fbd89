"""Tasks from Python: a function that returns problems, a `Task`, or rows.

A function gets `task.options` as keywords and returns a `Task`, rows, or rows by split. Rows are an
iterable, a table of pandas, polars or pyarrow, or anything with a length and indices. A row is a
mapping with a prompt and any other columns, as a line of a data file, or the prompt alone as text.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from grpo_engine import names
from grpo_engine.config.declaration import Setting
from grpo_engine.config.settings import TaskConfig
from grpo_engine.errors import DataError, EngineError
from grpo_engine.sandbox.report import describe, is_users
from grpo_engine.tasks.base import Task, digest_of, digest_of_examples, prompt_settings
from grpo_engine.tasks.files import OPTIONS, Problems, task_of_splits
from grpo_engine.tasks.options import read_options
from grpo_engine.tasks.rows import BadRows, DataRow


def build(config: TaskConfig) -> Task:
    """Build the task of the function that `task.name` refers to."""
    with located(config):
        return task_of(config, source_of(config))


@contextmanager
def located(config: TaskConfig) -> Iterator[None]:
    """Say of an error that a user's file raises where it is."""
    try:
        yield
    except EngineError:
        raise
    except Exception as error:
        failure = describe(error)
        if not is_users(failure.location):
            raise
        raise DataError(
            f"task {config.name}: {failure.message} (at {failure.line})", "task.name"
        ) from error


def source_of(config: TaskConfig) -> Any:
    """The function, `Task` or rows that `task.name` refers to."""
    purpose = names.Purpose(f"task.name {config.name}", DataError)
    return names.resolve("tasks", "task", config.name, purpose)[0]


def options_of(config: TaskConfig) -> Mapping[str, Setting]:
    """The arguments of the function; rows take the options of a data file."""
    source = source_of(config)
    if not callable(source):
        return {} if isinstance(source, Task) else OPTIONS
    parameters = inspect.signature(source).parameters.values()
    return {
        item.name: Setting(
            help="Of the task's function.",
            annotation=Any,
            default=None if item.default is item.empty else item.default,
        )
        for item in parameters
        if item.kind in (item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY)
    }


def called(source: Callable[..., Any], config: TaskConfig) -> Any:
    """What the function returns for the task's options; they must be those that it takes."""
    try:
        signature = inspect.signature(source)
    except ValueError:  # not written in Python
        return source(**config.options)
    try:
        signature.bind(**config.options)
    except TypeError as error:
        raise DataError(
            f"task.options: {config.name}: {error}; it takes {', '.join(signature.parameters)}",
            "task.options",
        ) from None
    return source(**config.options)


def task_of(config: TaskConfig, source: Any) -> Task:
    """Make the task of a function, a `Task`, rows, or rows by split."""
    options: Mapping[str, Any] = {}
    if callable(source):
        source = called(source, config)
    else:
        options = read_options(config, {} if isinstance(source, Task) else OPTIONS)
    if isinstance(source, Task):
        return _with_settings(config, source)
    bad = BadRows(config)
    label = config.name.removeprefix(names.IN_PROCESS)
    rows = splits_of(config, source, label, bad)
    return task_of_splits(config, rows, label, bad, Problems(**options))


def splits_of(
    config: TaskConfig, source: Any, label: str, bad: BadRows
) -> Mapping[str, Sequence[DataRow]]:
    """The rows by split, of rows or of rows by split."""
    splits = source if isinstance(source, Mapping) else {config.option("train"): source}
    return {name: _rows(part, f"{label} ({name})", bad) for name, part in splits.items()}


def has_rows(source: Any) -> bool:
    """Whether an object can be read as rows."""
    if isinstance(source, str | bytes):
        return False
    indexed = hasattr(source, "__len__") and hasattr(source, "__getitem__")
    return isinstance(source, Iterable) or indexed


def rows_of(source: Any) -> list[Any]:
    """The rows of a table, an iterable, or what has a length and indices."""
    for method, arguments in (("to_dicts", ()), ("to_pylist", ()), ("to_dict", ("records",))):
        if hasattr(source, "columns") and hasattr(source, method):
            return list(getattr(source, method)(*arguments))  # of polars, pyarrow, pandas
    if isinstance(source, Iterable):
        return list(source)
    return [source[index] for index in range(len(source))]


def _value(value: Any) -> Any:
    """A cell as JSON has it: lists for arrays, None for what is missing."""
    plain = value.tolist() if hasattr(value, "tolist") else value
    is_missing = isinstance(plain, float) and plain != plain
    return None if is_missing or type(plain).__name__ in ("NAType", "NaTType") else plain


def _rows(source: Any, location: str, bad: BadRows) -> list[DataRow]:
    if not has_rows(source):
        raise DataError(f"{location}: a task is a Task or rows, not {type(source).__name__}")
    rows = rows_of(source)
    if not rows:
        raise DataError(f"{location} has no rows; give at least one")

    def convert(index: int, row: Any) -> DataRow:
        if isinstance(row, str):
            row = {"prompt": row}
        if not isinstance(row, Mapping):
            raise DataError(
                f"{location}: row {index + 1} is {type(row).__name__} {str(row)[:60]!r}; a row is "
                'a mapping like {"prompt": …, "answer": …}, or text'
            )
        columns = {str(name): _value(value) for name, value in row.items()}
        return DataRow(columns, f"{location}: row {index + 1}")

    return bad.good(rows, convert)


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
        **prompt_settings(config, task.system_prompt, task.prefill, shuffle=task.shuffle),
    )
