"""What a format of another trainer gives: its finished steps, and what they lack."""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, Final, TypeVar

from grpo_engine import events as ev
from grpo_engine.frozen import frozen
from grpo_tui import record
from grpo_tui.foreign.files import Folder

T = TypeVar("T")

# What may be recorded of tokens; a format has mostly one answer to why it is missing.
OF_TOKENS: Final = (
    "tokens",
    "the sampler's log-probabilities",
    "the trainer's log-probabilities",
    "the reference's log-probabilities",
    "entropy by token",
)


@frozen
class Evaluation:
    """A held-out evaluation after a step."""

    problems: Sequence[ev.EvaluationSample] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    greedy: bool = False


@frozen
class Step:
    """What a trainer recorded of one step."""

    groups: Sequence[record.Group] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    updates: Sequence[ev.PassFinished] = ()
    evaluations: Sequence[Evaluation] = ()


class Reader(ABC):
    """The run of one folder or file; it is asked again and again while this grows."""

    format: str  # as in the run's settings: what recognises the run at its next import
    trainer: str
    remedies: ClassVar[Mapping[str, str]]  # by what may be missing: what would record it
    settings: Mapping[str, Any] = {}  # by the names of this program, or as the trainer has them

    def __init__(self, path: Path, name: str = "") -> None:
        self.path = path
        # That of the run, if the user gives none.
        self.name = name or (path.stem if path.is_file() else path.name)

    @abstractmethod
    def steps(self) -> Mapping[int, Any]:
        """The steps that exist now, in order, each with a value that changes as it grows."""

    @abstractmethod
    def read(self, step: int, /) -> Step:
        """Read a step; UnfinishedError if it is not written to its end."""


@frozen
class Format:
    """A kind of files, recognised by their content."""

    name: str
    files: str  # what they are called, for people
    open: Callable[[Folder], Sequence[Reader]]  # the runs in it, mostly one; none if it is another


def answers(step: Step) -> list[ev.Rollout]:
    return [answer for item in step.groups for answer in item.group.rollouts]


# What may be recorded of a step, and how that is seen.
ASPECTS: Final[Mapping[str, Callable[[Step], bool]]] = {
    "answers": lambda step: bool(answers(step)),
    "rewards": lambda step: any(item.reward is not None for item in answers(step)),
    "rewards by function": lambda step: any(item.rewards for item in answers(step)),
    "reference solutions": lambda step: any(item.group.target for item in step.groups),
    "advantages": lambda step: any(item.advantage is not None for item in answers(step)),
    "tokens": lambda step: any(item.ids for item in answers(step)),
    "the sampler's log-probabilities": lambda step: any(
        item.sampler_logprobs for item in answers(step)
    ),
    "the trainer's log-probabilities": lambda step: _numbers(step, "old"),
    "the reference's log-probabilities": lambda step: _numbers(step, "reference"),
    "entropy by token": lambda step: _numbers(step, "entropy"),
    "metrics": lambda step: bool(step.metrics or step.updates),
    "held-out evaluations": lambda step: bool(step.evaluations),
}


def _numbers(step: Step, name: str) -> bool:
    return any(getattr(row, name) for item in step.groups for row in item.numbers)


def evaluation_of(
    groups: Sequence[ev.Group], metrics: Mapping[str, float] | None = None, *, greedy: bool = False
) -> Evaluation:
    """The evaluation that these held-out answers are; its mean reward is computed here."""
    means = [item.reward_mean for item in groups if item.reward_mean is not None]
    mean = {"eval/reward": fmean(means)} if means else {}
    problems = [*map(record.problem_of, groups)]
    return Evaluation(problems=problems, metrics=mean | {**(metrics or {})}, greedy=greedy)


def by_prompt(rows: Iterable[T], prompt: Callable[[T], Any]) -> list[list[T]]:
    """The rows of each prompt, which may come in between those of others."""
    groups: dict[Any, list[T]] = defaultdict(list)
    for row in rows:
        groups[prompt(row)].append(row)
    return list(groups.values())


def in_groups(rows: Sequence[Any], prompt: Callable[[Any], Any]) -> list[list[Any]]:
    """Neighbouring rows of one prompt."""
    return [list(items) for _, items in groupby(rows, key=prompt)]
