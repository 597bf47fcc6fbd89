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

    cause: Cause
    message: str
    completion: int | None = None
    function: str = ""
    line: str = ""
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

    names: tuple[str, ...] = ()
    rewards: tuple[tuple[RewardValue, ...], ...] = ()
    steps: tuple[tuple[Steps | None, ...], ...] = ()
    extras: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    problems: tuple[RewardProblem, ...] = ()
    seconds: tuple[float, ...] = ()


@dataclass(slots=True)
class Outcome:
    """The scores of one function: a float or None for each completion, and what it logged.

    `steps[i]` has the (end character, score) pairs of a process reward, whose mean is its score.
    """

    values: list[float | None] = field(default_factory=list)
    steps: list[Steps | None] = field(default_factory=list)
    problems: list[RewardProblem] = field(default_factory=list)
    extras: dict[str, list[Any]] = field(default_factory=dict)
    metrics: dict[str, list[float]] = field(default_factory=dict)
    seconds: float = 0.0

    @classmethod
    def failed(cls, count: int, problem: RewardProblem) -> "Outcome":
        """No score for any of the completions."""
        return cls([None] * count, [None] * count, [problem])
