"""Tasks: problems, their prompts, and the rewards for answers.

Data and split depend only on `TaskConfig`, not on a run's seed, so that runs with different seeds
are evaluated on the same problems. The run's seed orders the training problems; see `draw`.
"""

import hashlib
import json
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Final

from grpo_engine import names
from grpo_engine.config.settings import TaskConfig
from grpo_engine.errors import DataError
from grpo_engine.frozen import frozen

Message = Mapping[str, Any]
Prompt = str | tuple[Message, ...]

REDRAWS = 64  # of a generated training problem that is held out
SIZE: Final = 1_000_000  # problems of a generator without an end


@frozen
class Example:
    """One problem; `columns` are JSON values that reward functions get by keyword.

    A text `prompt` is passed to the model unchanged; chat messages go through its chat template.
    `completion` is the data's own answer, which recipe sft learns: text or a list of messages.
    `where` is the file and line that it came from, for error messages. `task` is the label of the
    run's further task that it belongs to.
    """

    key: str
    prompt: Prompt
    target: str = ""
    completion: Any = ""
    columns: Mapping[str, Any] = field(default_factory=dict)
    where: str = ""
    task: str = ""


@frozen
class RewardSpec:
    """A reward function by the name that users write, its weight and keyword options."""

    name: str
    weight: float = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)


@frozen
class Task:
    """Problems for training, and held-out ones.

    `accuracy` names the reward function that decides right (score >= 1) or wrong in an evaluation;
    empty if the task has no right answers. `prefill` is text that every answer starts with. An
    empty `fingerprint` is computed from the problems when a run begins.
    """

    name: str
    train: Sequence[Example]
    held_out: Sequence[Example] = ()
    description: str = ""
    fingerprint: str = ""
    default_rewards: tuple[RewardSpec, ...] = ()
    accuracy: str = ""
    system_prompt: str = ""
    prefill: str = ""
    shuffle: bool = True
    notes: tuple[str, ...] = ()
    skipped: int = 0  # unusable rows of the data
    tools: tuple[str, ...] = ()  # The settings' tools or environment replace both.
    environment: str = ""

    @property
    def prompt_forms(self) -> set[str]:
        """`text`, `messages` or both; the problems of a generator are alike."""
        examples = self.train[:1] if isinstance(self.train, Generated) else self.train
        return {"text" if isinstance(e.prompt, str) else "messages" for e in examples}


@dataclass(frozen=True, eq=False)
class Generated(Sequence[Example]):
    """Problems generated on demand: item i is `make(i)`, or a replacement if that is held out.

    A problem whose prompt is in `excluded` (see `prompt_hash`) is replaced by one at another index
    in 0..size-1 that depends only on i, so that an item is a function of its index.
    """

    make: Callable[[int], Example]
    size: int
    excluded: Collection[str] = ()

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(self.size)[index]]
        index = range(self.size)[index]
        for attempt in range(REDRAWS):
            chosen = permuted(index, self.size, f"redraw/{attempt}") if attempt else index
            example = self.make(chosen)
            if prompt_hash(example.prompt) not in self.excluded:
                return example
        raise DataError(
            f"problem {index} was held out {REDRAWS} times in a row ({example.key}): the task "
            f"has too few distinct problems; lower task.held_out_size ({len(self.excluded)} now)",
            "task.held_out_size",
        )


def generated_task(
    config: TaskConfig,
    name: str,
    make: Callable[[int], Example],
    identity: Sequence[str],
    *,
    size: int = SIZE,
    start: int = 1 << 40,
    system_prompt: str = "",
    prefill: str = "",
    **more: Any,
) -> Task:
    """A task without data: its held-out problems are distinct, made from index `start` on.

    The texts of `identity` differ between generators that make different problems.
    """
    held_out: dict[str, Example] = {}
    for index in range(start, start + max(64, 8 * config.held_out_size)):
        if len(held_out) == config.held_out_size:
            break
        example = make(index)
        held_out.setdefault(prompt_hash(example.prompt), example)
    return Task(
        name=name,
        train=Generated(make, config.train_size or size, held_out.keys()),
        held_out=tuple(held_out.values()),
        fingerprint=digest_of([*identity, str(len(held_out))]),
        **prompt_settings(config, system_prompt, prefill),
        **more,
    )


def prompt_settings(
    config: TaskConfig, system_prompt: str = "", prefill: str = "", *, shuffle: bool = True
) -> dict[str, Any]:
    """How a task's problems are put to the model: by the settings, else by the task."""
    return {
        "system_prompt": system_prompt if config.system_prompt is None else config.system_prompt,
        "prefill": config.prefill or prefill,
        "shuffle": shuffle and config.shuffle,
    }


def set_aside(
    examples: Sequence[Example], held_out_size: int, *, seed: int = 0
) -> tuple[tuple[Example, ...], tuple[Example, ...]]:
    """Split one list into (train, held out) by a seeded choice; equal prompts stay together.

    At most half of the distinct prompts are held out.
    """
    by_prompt: dict[str, list[Example]] = {}
    for example in examples:
        by_prompt.setdefault(prompt_hash(example.prompt), []).append(example)
    groups = list(by_prompt.values())
    count = min(held_out_size, len(groups) // 2)
    chosen = {permuted(i, len(groups), f"held out/{seed}") for i in range(count)}
    train = tuple(e for i, group in enumerate(groups) if i not in chosen for e in group)
    return train, tuple(groups[i][0] for i in sorted(chosen))


def draw(task: Task, seed: int, position: int, count: int) -> list[Example]:
    """Return `count` training problems from `position` on.

    Position p is problem `permuted(p mod n)` of epoch `p div n`, so the integer `position` is the
    complete data cursor.
    """
    size = len(task.train)
    if size == 0:
        raise DataError(f"task {task.name} has no training problems")

    problems = []
    for number in range(position, position + count):
        epoch, index = divmod(number, size)
        index = permuted(index, size, f"{seed}/{epoch}") if task.shuffle else index
        problems.append(task.train[index])
    return problems


def permuted(index: int, size: int, key: str) -> int:
    """Permute 0..size-1 in an order that depends only on `key`.

    A four-round Feistel network over the next even number of bits, iterated until the result is
    below `size`. It needs constant memory and is the same on every machine and version.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left, right = index >> half, index & mask
        for turn in range(4):
            left, right = right, left ^ (number_of(f"{key}/{turn}/{right}") & mask)
        index = left << half | right
        if index < size:
            return index


def number_of(text: str) -> int:
    """A hash of the text, of 64 bits."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def prompt_hash(prompt: Prompt) -> str:
    """A short digest of a prompt's content, equal for equal text or messages."""
    text = prompt if isinstance(prompt, str) else json_of(list(map(dict, prompt)))
    return digest_of([text])


def json_of(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)


def digest_of(parts: Iterable[str]) -> str:
    """A digest of the strings in order, with their lengths."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(f"{len(data)}:".encode())
        digest.update(data)
    return digest.hexdigest()


def digest_of_examples(examples: Iterable[Example]) -> str:
    """A digest of the examples, without `where`."""

    return digest_of(
        part
        for example in examples
        for part in (prompt_hash(example.prompt), example.target, json_of(dict(example.columns)))
    )


def fingerprint_of(tasks: Sequence[Task]) -> str:
    marks = [task.fingerprint for task in tasks]
    return marks[0] if len(marks) == 1 else digest_of(marks)


def user_message(text: str) -> tuple[Message, ...]:
    return ({"role": "user", "content": text},)


# The target and the summary of each built-in task; its module is imported on demand.
BUILT_IN: Final[Mapping[str, tuple[str, str]]] = {
    name: (row["target"], row["summary"])
    for name, row in tomllib.loads(
        Path(__file__).with_name("builtins.toml").read_text(encoding="utf-8")
    ).items()
}


def load_task(config: TaskConfig) -> Task:
    """Build the task that the settings name.

    It is a built-in one, code of the user or of a package, a file, a folder or a hub data set.
    """
    target, _ = BUILT_IN.get(config.name.partition(":")[0], ("", ""))
    if not target:
        target = f"grpo_engine.tasks.{'code' if is_code(config.name) else 'files'}:build"
    task: Task = resolve_name(target)(config)
    return task


def is_code(name: str) -> bool:
    """Whether a task's name is that of a function, or of what a package brings."""
    path = Path(name).expanduser()
    if name.endswith(".py"):
        return True
    if path.exists():
        return False
    module, colon, _ = name.rpartition(":")
    if colon:  # A hub id may end in :configuration, and a data file may have a colon in its name.
        is_module = all(part.isidentifier() for part in module.split("."))
        return module.endswith(".py") or is_module
    return not path.suffix and name in names.installed("tasks")
