"""Tasks from a file, folder or hub data set, in TRL's or mlx-lm's column conventions.

TRL: a column `prompt` of text (passed to the model unchanged) or of chat messages, and any others.
mlx-lm: `messages`, whose last answer is the target, or `prompt` and `completion`, turned into chat
messages; a folder holds `train.jsonl`, `valid.jsonl` and `test.jsonl`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from grpo_engine.config.settings import TaskConfig
from grpo_engine.errors import DataError, nearest
from grpo_engine.names import installed
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
    without,
)
from grpo_engine.tasks.options import read_options
from grpo_engine.tasks.rows import SUFFIXES, BadRows, Row, not_json, read_rows

# Other names for the expected answer, tried if the target column has its default name.
TARGETS: Final = ("solution", "completion", "target", "label")
PROMPTS: Final = ("question", "problem", "instruction", "query", "input", "text")
HELD_OUT: Final = ("valid", "validation", "test", "dev", "eval")
OPTIONS: Final[Mapping[str, Any]] = {"chat": None, "seed": 0}


def build(config: TaskConfig) -> Task:
    """Build a task from the data that the task's name points to."""
    options = read_options(config, OPTIONS)
    bad = BadRows(skip=config.bad_rows == "skip")
    label = Path(config.name).name or config.name
    return task_of_splits(config, load_splits(config, config.name, bad), label, bad, **options)


def task_of_splits(
    config: TaskConfig, splits: Mapping[str, Sequence[Row]], name: str, bad: BadRows,
    *, chat: bool | None = None, seed: int = 0,
) -> Task:  # fmt: skip
    notes: list[str] = []
    train, held_out = (
        examples_of(config, splits[split], split, chat, notes, bad) if split else []
        for split in pick_splits(config, splits)
    )
    return make_task(
        config,
        name,
        f"{config.name}: {len(train)} rows",
        train,
        held_out,
        bad,
        notes=notes,
        seed=seed,
        default_rewards=default_rewards(train),
    )


def default_rewards(examples: Sequence[Example]) -> tuple[RewardSpec, ...]:
    """Rewards for data with an `answer`: numeric if all answers are numbers, else as text."""
    if not examples or any("answer" not in example.columns for example in examples[:100]):
        return ()
    from grpo_engine.tasks.answers import tagged_answer, to_numbers

    answers = [str(example.columns["answer"]) for example in examples[:100]]
    numeric = all(to_numbers(tagged_answer(answer) or answer) for answer in answers)
    return (RewardSpec(name="numeric_answer" if numeric else "exact_answer"),)


def make_task(
    config: TaskConfig,
    name: str,
    description: str,
    train: Sequence[Example],
    held_out: Sequence[Example],
    bad: BadRows,
    *,
    notes: Sequence[str] = (),
    seed: int = 0,
    system_prompt: str = "",
    prefill: str = "",
    default_rewards: Sequence[RewardSpec] = (),
) -> Task:
    """Split examples into train and held out, limit both to their sizes, and remove overlap."""
    skipped = bad.note(len(train) + len(held_out))
    notes = [*filter(None, [skipped]), *notes]
    if held_out:
        train, dropped = without(train, held_out)
        if dropped:
            notes.append(
                f"{dropped} training rows have the prompt of a held-out row and were dropped"
            )
        held_out = held_out[: config.held_out_size]
    elif config.held_out_size:
        rows = train
        train, held_out = set_aside(rows, config.held_out_size, seed=seed)
        notes += _about_split(config, rows, train, held_out)
    if config.train_size:
        train = train[: config.train_size]
    if not train:
        raise DataError(
            f"task {config.name} has no training rows left after {len(held_out)} were held out; "
            "lower task.held_out_size or give other files for the two splits",
            "task.held_out_size",
        )
    rewards = tuple(default_rewards)
    return Task(
        name=name,
        description=description,
        train=tuple(train),
        held_out=tuple(held_out),
        fingerprint=digest_of([digest_of_examples(train), digest_of_examples(held_out)]),
        default_rewards=rewards,
        accuracy=rewards[0].name if rewards else "",
        **prompt_settings(config, system_prompt, prefill),
        notes=tuple(notes),
        skipped=bad.count,
    )


def _about_split(
    config: TaskConfig,
    rows: Sequence[Example],
    train: Sequence[Example],
    held_out: Sequence[Example],
) -> list[str]:
    """Why fewer rows were set aside than asked for, and which are used by neither side."""
    notes = []
    if len(held_out) < config.held_out_size:
        prompts = len({prompt_hash(row.prompt) for row in rows})
        notes.append(
            f"{len(held_out)} of {len(rows)} rows are held out, fewer than task.held_out_size "
            f"{config.held_out_size}: at most half of the {prompts} different prompts"
        )
    if unused := len(rows) - len(train) - len(held_out):
        notes.append(f"{unused} rows repeat a held-out prompt and are not used")
    return notes


def load_splits(config: TaskConfig, name: str, bad: BadRows) -> dict[str, list[Row]]:
    """The rows of every split of the data that `name` points to, by the split's name."""
    path = Path(name).expanduser()
    if path.is_file():
        return {config.split: read_rows(path, bad)}
    if path.is_dir():
        return _folder(config, path, bad)
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

    return hub_splits(config, name)


def _folder(config: TaskConfig, folder: Path, bad: BadRows) -> dict[str, list[Row]]:
    """Read `train.jsonl` and its siblings, or shards like `train-00000-of-00002.parquet`."""
    names = {config.split, config.held_out_split, *HELD_OUT} - {""}
    splits: dict[str, list[Row]] = {}
    for path in (folder, folder / "data"):
        files = [file for file in sorted(path.glob("*")) if file.suffix.lower() in SUFFIXES]
        for split in names - splits.keys():
            if parts := [file for file in files if f"{file.stem}-".startswith(f"{split}-")]:
                splits[split] = [row for file in parts for row in read_rows(file, bad)]
    if not splits:
        raise DataError(
            f"{folder} has no data file; it should hold {config.split}.jsonl and, if there is one, "
            "valid.jsonl or test.jsonl (.json, .csv, .tsv and .parquet work as well)"
        )
    return splits


def pick_splits(config: TaskConfig, splits: Mapping[str, Any]) -> tuple[str, str]:
    """Names of the training and held-out splits; the latter is empty to set rows aside."""
    for name in ("split", "held_out_split"):
        split = getattr(config, name)
        if split and split not in splits:
            raise DataError(
                f"task.{name}: task {config.name} has no split {split!r}; it has "
                f"{', '.join(splits)}",
                f"task.{name}",
            )
    held_out = config.held_out_split or next((name for name in HELD_OUT if name in splits), "")
    return config.split, held_out if held_out != config.split else ""


def examples_of(
    config: TaskConfig, rows: Sequence[Row], split: str, chat: bool | None, notes: list[str],
    bad: BadRows,
) -> list[Example]:  # fmt: skip
    """Convert rows to examples, and collect those that have no usable prompt."""
    names, target_column = _columns(config, rows, notes)

    def example(index: int, row: Row) -> Example:
        prompt, target = _read(config, row, target_column, chat)
        others = {name: row.columns.get(name) for name in names}
        if target and "answer" not in others:
            others["answer"] = target
        return Example(
            key=f"{split}-{index}", prompt=prompt, target=target, columns=others, where=row.where
        )

    return bad.good(rows, example)


def _columns(config: TaskConfig, rows: Sequence[Row], notes: list[str]) -> tuple[list[str], str]:
    """The columns that reward functions get, and the one with the target."""
    names = tuple(dict.fromkeys(name for row in rows for name in row.columns))
    explicit = config.target_column != TaskConfig.model_fields["target_column"].default
    target = next((n for n in (config.target_column, *TARGETS) if n in names), "")
    if explicit and config.target_column not in names:
        raise DataError(
            f"{rows[0].where}: there is no column {config.target_column!r} (task.target_column); "
            f"there are {', '.join(names)}",
            "task.target_column",
        )
    passed = []
    for name in names:
        row = next((row for row in rows if not_json(row.columns.get(name))), None)
        if row is not None:
            problem = f"column {name!r} holds {not_json(row.columns.get(name))}"
            if name in (config.prompt_column, target):
                raise DataError(f"{row.where}: {problem}, which is not JSON")
            notes.append(
                f"{problem} ({row.where}), which is not JSON, and is not passed "
                "to reward functions; convert it to text or numbers if one needs it"
            )
        elif name not in (config.prompt_column, "prompt"):
            passed.append(name)
    return passed, target


def _read(
    config: TaskConfig, row: Row, target_column: str, chat: bool | None
) -> tuple[Prompt, str]:
    data, where = row.columns, row.where
    prompt: Prompt
    answer = ""
    if data.get(config.prompt_column) is None and isinstance(data.get("messages"), list):
        messages = read_messages(data["messages"], where, "messages")
        if messages[-1].get("role") == "assistant":
            answer, messages = str(messages[-1]["content"]), messages[:-1]
        if not messages:
            raise DataError(f"{where}: the messages have an answer and no question; remove the row")
        prompt = messages
    else:
        prompt = _prompt(config, row)
        as_chat = chat if chat is not None else isinstance(data.get("completion"), str)
        if isinstance(prompt, str) and as_chat:
            prompt = ({"role": "user", "content": prompt},)
    value = data.get(target_column)
    return prompt, answer if value is None else text_of_target(value)


def _prompt(config: TaskConfig, row: Row) -> Prompt:
    name, where = config.prompt_column, row.where
    value = row.columns.get(name)
    if value is None:
        have = ", ".join(row.columns) or "none"
        near = next((n for n in PROMPTS if n in row.columns), "")
        hint = f" (perhaps {near})" if near else ""
        if name in row.columns:
            raise DataError(f"{where}: the prompt is null; fill it or remove the row")
        raise DataError(
            f"{where}: there is no column {name!r}; its columns are {have}. Set "
            f"task.prompt_column to the one with the prompt{hint}",
            "task.prompt_column",
        )
    if isinstance(value, str):
        if not value.strip():
            raise DataError(f"{where}: the prompt is empty; fill it or remove the row")
        return value
    if isinstance(value, list):
        return read_messages(value, where, name)
    raise DataError(
        f"{where}: column {name!r} is {type(value).__name__}; a prompt is text or a list of "
        "chat messages"
    )


def read_messages(value: Sequence[Any], where: str, name: str) -> tuple[Message, ...]:
    """Check a list of chat messages."""
    if not value:
        raise DataError(f"{where}: the prompt is empty (no messages in {name!r})")
    for number, message in enumerate(value, 1):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise DataError(
                f"{where}: message {number} of {name!r} is {str(message)[:60]!r}; a message is "
                '{"role": …, "content": …}'
            )
        if not isinstance(message.get("content"), str | list):
            raise DataError(f"{where}: message {number} of {name!r} has no text in 'content'")
    messages = tuple(
        {key: inner for key, inner in message.items() if inner is not None} for message in value
    )
    if not any(str(message["content"]).strip() for message in messages):
        raise DataError(f"{where}: the prompt is empty: its messages have no text")
    return messages


def text_of_target(value: Any) -> str:
    """A target as text; for messages, the content of the last one."""
    if isinstance(value, list) and value and isinstance(value[-1], Mapping):
        return str(value[-1].get("content", ""))
    return str(value)
