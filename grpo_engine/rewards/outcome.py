"""Results of scoring a batch: scores, reasons and problems."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from grpo_engine.events import RewardValue

Cause = Literal["exception", "timeout", "crash", "count", "type", "value"]
Steps = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardProblem:
    """A function's failure; `line` is `file:line`, `completion` an index into the batch."""

    function: str
    completion: int | None
    line: str
    message: str
    cause: Cause
    traceback: str = ""

    def __str__(self) -> str:
        which = "" if self.completion is None else f" on completion {self.completion}"
        where = f" ({self.line})" if self.line else ""
        return f"reward {self.function}{which}{where}: {self.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRewards:
    """The scores of a batch: `rewards[b][f]` of function f for completion b.

    `steps[f][b]` has (end character, score) pairs if function f is a process reward.
    `extras` holds the columns of `log_extra`, `metrics` the means of `log_metric`.
    """

    names: tuple[str, ...]
    rewards: tuple[tuple[RewardValue, ...], ...]
    steps: tuple[tuple[Steps | None, ...], ...]
    extras: Mapping[str, tuple[Any, ...]]
    metrics: Mapping[str, float]
    problems: tuple[RewardProblem, ...]
    seconds: tuple[float, ...]


@dataclass(slots=True)
class Outcome:
    """The scores of one function."""

    values: list[float | None] = field(default_factory=list)
    steps: list[Steps | None] = field(default_factory=list)
    extras: Mapping[str, list[Any]] = field(default_factory=dict)
    metrics: Mapping[str, list[float]] = field(default_factory=dict)
    problems: list[RewardProblem] = field(default_factory=list)
    seconds: float = 0.0

    def extend(self, other: "Outcome") -> None:
        """Append the scores of further completions."""
        self.values += other.values
        self.steps += other.steps
        self.problems += other.problems
