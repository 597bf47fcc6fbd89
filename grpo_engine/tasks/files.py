"""Tasks from a file, folder or hub data set, in TRL's or mlx-lm's column conventions.

TRL: a column `prompt` of text (passed to the model unchanged) or of chat messages, and any others.
mlx-lm: `messages`, whose last answer is the target, or `prompt` and `completion`, turned into chat
messages. The last answer, or the completion, is what recipe sft learns. A folder holds
`train.jsonl`, `valid.jsonl` and `test.jsonl`.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from grpo_engine.config.declaration import declared
from grpo_engine.config.settings import TaskConfig
from grpo_engine.errors import DataError, nearest
from grpo_engine.frozen import frozen
from grpo_engine.names import installed
from grpo_engine.sandbox.report import plain
from grpo_engine.tasks.answers import tagged_answer, to_numbers
from grpo_engine.tasks.base import (
    BUILT_IN,
    Example,
    Message,
    Prompt,
    RewardSpec,
    Task,
    digest_of,
    digest_of_examples,
    prompt_hash,
    prompt_settings,
    set_aside,
    user_message,
)
from grpo_engine.tasks.options import read_options
from grpo_engine.tasks.rows import HELD_OUT, SUFFIXES, BadRows, DataRow, read_rows

# Other names for the expected answer, tried if the target column has its default name.
TARGETS: Final = ("solution", "completion", "target", "label")
PROMPTS: Final = ("question", "problem", "instruction", "query", "input", "text")
OPTIONS: Final = {
    "chat": declared(
        None,
        "Send text prompts as a user's message through the chat template; empty: as they are, "
        "unless the data has completions.",
        annotation=bool | None,
    ),
    "seed": declared(0, "Chooses the rows that are held out.", ge=None),
}

# A problem from a split, an index and a row.
Make = Callable[[str, int, DataRow], Example]


@frozen
class Problems:
    """How rows become problems, and what a task says of itself where the settings say nothing."""

    make: Make | None = None  # None reads the columns.
    chat: bool | None = None  # Text prompts become messages; None if the columns decide.
    seed: int = 0  # for the choice of held-out rows
    description: str = ""
    system_prompt: str = ""
    rewards: tuple[RewardSpec, ...] | None = None  # None chooses by the answers.


def build(config: TaskConfig) -> Task:
    """Build a task from the data that the task's name points to."""
    problems = Problems(**read_options(config, OPTIONS))
    return task_of_data(config, config.name, Path(config.name).name or config.name, problems)


def task_of_data(config: TaskConfig, data: str, name: str, problems: Problems) -> Task:
    """The task of a file, folder or hub data set."""
    bad = BadRows(config)
    return task_of_splits(config, load_splits(config, data, bad), name, bad, problems)


def task_of_splits(
    config: TaskConfig,
    splits: Mapping[str, Sequence[DataRow]],
    name: str,
    bad: BadRows,
    problems: Problems,
) -> Task:
    """Make the rows' problems, split them, limit both parts to their sizes, and remove overlap."""

    def examples_of(split: str) -> tuple[Example, ...]:
        if not split:
            return ()
        make = problems.make or _maker(config, splits[split], problems.chat)
        return tuple(bad.good(splits[split], partial(make, split)))

    train, held_out = map(examples_of, _pick_splits(config, splits))
    description = problems.description or f"{config.name}: {len(train)} rows"
    rewards = default_rewards(train) if problems.rewards is None else problems.rewards
    notes = [*filter(None, [bad.note(len(train) + len(held_out))])]
    missing = sum(not answer_of(example) for example in (*train, *held_out))
    if rewards and problems.rewards is None and missing:
        notes.append(
            f"{missing} of {len(train) + len(held_out)} rows have no answer, so that "
            f"{rewards[0].name} gives them no score"
        )
    train, held_out = _parts(config, train, held_out, problems.seed, notes)
    if not train:
        raise DataError(
            f"task {config.name} has no training rows left after {len(held_out)} were held out; "
            "lower task.held_out_size or give other files for the two splits",
            "task.held_out_size",
        )
    return Task(
        name=name,
        description=description,
        train=train,
        held_out=held_out,
        fingerprint=digest_of([digest_of_examples(train), digest_of_examples(held_out)]),
        default_rewards=rewards,
        accuracy=rewards[0].name if rewards else "",
        **prompt_settings(config, problems.system_prompt),
        notes=tuple(notes),
        skipped=bad.count,
    )


def default_rewards(examples: Sequence[Example]) -> tuple[RewardSpec, ...]:
    """Rewards for data with an `answer`: numeric if all answers are numbers, else as text."""
    answers = [answer for example in examples[:100] if (answer := answer_of(example))]
    if not answers:
        return ()
    numeric = all(to_numbers(tagged_answer(answer) or answer) for answer in answers)
    return (RewardSpec(name="numeric_answer" if numeric else "exact_answer"),)


def answer_of(example: Example) -> str:
    """The expected answer of a row; empty if it has none."""
    answer = example.columns.get("answer")
    return "" if answer is None else str(answer)


def _parts(
    config: TaskConfig,
    train: Sequence[Example],
    held_out: Sequence[Example],
    seed: int,
    notes: list[str],
) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
    """The training and held-out problems; notes say which rows are used by neither."""
    rows, size, moved = train, config.held_out_size, 0
    if held_out:
        excluded = {prompt_hash(example.prompt) for example in held_out}
        train = [example for example in rows if prompt_hash(example.prompt) not in excluded]
    elif size:
        train, held_out = set_aside(rows, size, seed=seed)
        moved = len(held_out)
        if len(held_out) < size:
            prompts = len({prompt_hash(row.prompt) for row in rows})
            notes.append(
                f"{len(held_out)} of {len(rows)} rows are held out, fewer than task.held_out_size "
                f"{size}: at most half of the {prompts} different prompts"
            )
    if unused := len(rows) - len(train) - moved:
        notes.append(f"{unused} training rows have the prompt of a held-out row and are not used")
    return tuple(train[: config.train_size or None]), tuple(held_out[:size])


def load_splits(
    config: TaskConfig, name: str, bad: BadRows, count: int | None = None
) -> dict[str, list[DataRow]]:
    """The rows of every split of the data that `name` points to, or the first of each file."""
    path = Path(name).expanduser()
    if path.is_file():
        return {config.option("train"): read_rows(path, bad, count)}
    if path.is_dir():
        return _folder(config, path, bad, count)
    if path.suffix.lower() in SUFFIXES or name.startswith(("/", "./", "../", "~")):
        raise DataError(f"there is no file or folder {path.absolute()}; check task.name")
    if "/" not in name:
        every = (*BUILT_IN, *installed("tasks"))
        raise DataError(
            f"there is no task {name!r}{nearest(name, every, 1)}; give one of "
            f"{', '.join(every)}, a data file, a folder, file.py:function, or a hub id like "
            "org/name"
        )
    from grpo_engine.tasks.hub import hub_splits

    return hub_splits(config, name, count)


def _folder(
    config: TaskConfig, folder: Path, bad: BadRows, count: int | None
) -> dict[str, list[DataRow]]:
    """Read `train.jsonl` and its siblings, or shards like `train-00000-of-00002.parquet`."""
    names = {config.option("train"), config.option("held_out"), *HELD_OUT} - {""}
    splits: dict[str, list[DataRow]] = {}
    for path in (folder, folder / "data"):
        files = [file for file in sorted(path.glob("*")) if file.suffix.lower() in SUFFIXES]
        for split in names - splits.keys():
            if parts := [file for file in files if f"{file.stem}-".startswith(f"{split}-")]:
                splits[split] = [row for file in parts for row in read_rows(file, bad, count)]
    if not splits:
        raise DataError(
            f"{folder} has no data file; it should hold {config.option('train')}.jsonl and, if "
            "there is one, valid.jsonl or test.jsonl (.json, .csv, .tsv and .parquet work as well)"
        )
    return splits


def _pick_splits(config: TaskConfig, splits: Mapping[str, Any]) -> tuple[str, str]:
    """Names of the training and held-out splits; the latter is empty to set rows aside."""
    train, held_out = config.option("train"), config.option("held_out")
    for split in (train, held_out):
        if split and split not in splits:
            raise DataError(
                f"task.splits: task {config.name} has no split {split!r}; it has "
                f"{', '.join(splits)}",
                "task.splits",
            )
    held_out = held_out or next((name for name in HELD_OUT if name in splits), "")
    return train, held_out if held_out != train else ""


def _maker(config: TaskConfig, rows: Sequence[DataRow], chat: bool | None) -> Make:
    """Converts rows to problems by their columns; what is no JSON value becomes text."""
    names, target_column = _columns(config, rows)

    def make(split: str, index: int, row: DataRow) -> Example:
        prompt, target, completion = _read(config, row, target_column, chat)
        columns = {name: plain(row.columns.get(name)) for name in names}
        if target and "answer" not in columns:
            columns["answer"] = target
        return Example(
            key=f"{split}-{index}",
            prompt=prompt,
            target=target,
            completion=completion,
            columns=columns,
            where=row.location,
        )

    return make


def _columns(config: TaskConfig, rows: Sequence[DataRow]) -> tuple[list[str], str]:
    """The columns that reward functions get, and the one with the target."""
    names = dict.fromkeys(name for row in rows for name in row.columns)
    answer = config.option("answer")
    if "answer" in config.columns and answer not in names:
        raise DataError(
            f"{rows[0].location}: there is no column {answer!r} (task.columns.answer)"
            f"; there are {', '.join(names)}",
            "task.columns",
        )
    target = next((name for name in (answer, *TARGETS) if name in names), "")
    return [name for name in names if name not in (config.option("prompt"), "prompt")], target


def _read(
    config: TaskConfig, row: DataRow, target_column: str, chat: bool | None
) -> tuple[Prompt, str, Any]:
    """The prompt of a row, its target as text, and its completion."""
    columns, answer = row.columns, ""
    completion = columns.get(config.option("completion")) or ""
    if not isinstance(completion, str) and not _are_messages(completion):
        completion = str(completion)
    if columns.get(config.option("prompt")) is None and isinstance(columns.get("messages"), list):
        messages = read_messages(columns["messages"], row.location, "messages")
        if messages[-1].get("role") == "assistant":
            answer, completion = str(messages[-1]["content"]), messages[-1:]
            messages = messages[:-1]
        prompt: Prompt = messages
        if not prompt:
            raise DataError(
                f"{row.location}: the messages have an answer and no question; remove the row"
            )
    else:
        prompt = _prompt(config, row)
        as_chat = isinstance(completion, str) and completion if chat is None else chat
        if isinstance(prompt, str) and as_chat:
            prompt = user_message(prompt)
    value = columns.get(target_column)
    if isinstance(value, list) and value and isinstance(value[-1], Mapping):
        value = value[-1].get("content", "")
    return prompt, answer if value is None else str(value), completion


def _are_messages(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(message, Mapping) and isinstance(message.get("role"), str) for message in value
    )


def _prompt(config: TaskConfig, row: DataRow) -> Prompt:
    name, location = config.option("prompt"), row.location
    value = row.columns.get(name)
    if name not in row.columns:
        columns = ", ".join(row.columns) or "none"
        near = next((n for n in PROMPTS if n in row.columns), "")
        hint = f" (perhaps {near})" if near else ""
        if len(row.columns) == 1 and any(sign in columns for sign in ";\t|"):
            hint = "; columns of a .csv file are separated by commas, of a .tsv file by tabs"
        raise DataError(
            f"{location}: there is no column {name!r}; its columns are {columns}. Set "
            f"task.columns.prompt to the one with the prompt{hint}",
            "task.columns",
        )
    if isinstance(value, list):
        return read_messages(value, location, name)
    if value is None or (isinstance(value, str) and not value.strip()):
        problem = "null" if value is None else "empty"
        raise DataError(f"{location}: the prompt is {problem}; fill it or remove the row")
    if not isinstance(value, str):
        raise DataError(
            f"{location}: column {name!r} is {type(value).__name__}; a prompt is text or a list of "
            "chat messages"
        )
    return value


def read_messages(value: Sequence[Any], location: str, name: str) -> tuple[Message, ...]:
    """Check a list of chat messages."""
    if not value:
        raise DataError(f"{location}: the prompt is empty (no messages in {name!r})")
    for number, message in enumerate(value, 1):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise DataError(
                f"{location}: message {number} of {name!r} is {str(message)[:60]!r}; a message is "
                '{"role": …, "content": …}'
            )
        content = message.get("content")
        if not isinstance(content, str | list) or plain(content) is not content:
            raise DataError(f"{location}: message {number} of {name!r} has no text in 'content'")
    messages = tuple(
        {key: plain(inner) for key, inner in message.items() if inner is not None}
        for message in value
    )
    if not any(str(message["content"]).strip() for message in messages):
        raise DataError(f"{location}: the prompt is empty: its messages have no text")
    return messages
