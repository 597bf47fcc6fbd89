"""Results of scoring a batch: scores, reasons and problems."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from grpo_engine.events import RewardValue

Cause = Literal["exception", "timeout", "crash", "count", "type", "value", "no_score"]
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


@dataclass(slots=True)
class Outcome:
    """What one function gave for a batch: a score for each completion, and what it logged.

    `steps[i]` has the (end character, score) pairs of a process reward, whose mean is its score.
    """

    rewards: list[RewardValue] = field(default_factory=list)
    steps: list[Steps | None] = field(default_factory=list)
    problems: list[RewardProblem] = field(default_factory=list)
    extras: dict[str, list[Any]] = field(default_factory=dict)
    metrics: dict[str, list[float]] = field(default_factory=dict)
    seconds: float = 0.0

    @classmethod
    def failed(cls, count: int, weight: float, problem: RewardProblem) -> "Outcome":
        """No score for any of the completions."""
        reward = RewardValue(
            name=problem.function, value=None, weight=weight, reason=problem.message
        )
        return cls([reward] * count, [None] * count, [problem])


def mean_metrics(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """The means of what functions logged by `log_metric`."""
    logged: dict[str, list[float]] = {}
    for outcome in outcomes:
        for name, values in outcome.metrics.items():
            logged.setdefault(name, []).extend(values)
    return {name: sum(values) / len(values) for name, values in logged.items()}
