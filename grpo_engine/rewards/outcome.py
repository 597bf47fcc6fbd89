"""Results of scoring a batch: what functions return is checked, and becomes scores or problems."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from statistics import fmean
from typing import Any, Literal

from grpo_engine.errors import RewardError
from grpo_engine.events import RewardValue
from grpo_engine.frozen import frozen

# The largest score times its weight: sums over a step's answers stay within float32, 3.4e38.
LARGEST = 1e30

Cause = Literal["exception", "timeout", "crash", "count", "type", "value", "no_score"]
Steps = tuple[tuple[int, float], ...]


@frozen
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
        location = f" ({self.line})" if self.line else ""
        return f"reward {self.function}{which}{location}: {self.message}"


@dataclass(slots=True)
class FunctionResult:
    """The scores of a batch by one function, and what it logged.

    `steps[i]` has the (end character, score) pairs of a process reward, whose mean is its score.
    """

    rewards: list[RewardValue] = field(default_factory=list)
    steps: list[Steps | None] = field(default_factory=list)
    problems: list[RewardProblem] = field(default_factory=list)
    extras: dict[str, list[Any]] = field(default_factory=dict)
    metrics: dict[str, list[float]] = field(default_factory=dict)
    seconds: float = 0.0

    def add(self, score: "Score", name: str, weight: float, reason: str = "") -> None:
        """Add the score of the next completion."""
        value = steps = None
        failed = isinstance(score, RewardProblem)
        match score:
            case RewardProblem():
                reason = score.message
                if score not in self.problems:  # The same one may be that of all completions.
                    self.problems.append(score)
            case tuple():
                steps, value = score, fmean(part for _, part in score) if score else None
            case _:
                value = score
        self.steps.append(steps)
        self.rewards.append(
            RewardValue(name=name, value=value, weight=weight, reason=reason, failed=failed)
        )


def mean_metrics(outcomes: Sequence[FunctionResult]) -> dict[str, float]:
    """The means of what functions logged by `log_metric`."""
    names = dict.fromkeys(name for outcome in outcomes for name in outcome.metrics)
    return {
        name: fmean(v for outcome in outcomes for v in outcome.metrics.get(name, ()))
        for name in names
    }


Score = float | Steps | RewardProblem | None


class InvalidError(Exception):
    """An item of what a function returned is no score; its arguments are cause and message."""


def read_scores(output: Any, count: int, weight: float = 1.0) -> list[Score]:
    """For each completion a score, those of its steps, None, or why there is none.

    A score that float32 cannot hold or add up is none.
    """
    if isinstance(output, str | bytes | dict) or not isinstance(output, Iterable):
        message = (
            f"returned {type(output).__name__}, not one score per completion; return a list of "
            f"{count} numbers"
        )
        return [RewardProblem(cause="type", message=message)] * count
    items = output.tolist() if hasattr(output, "tolist") else list(output)
    items = items if isinstance(items, list) else [items]
    if len(items) != count:
        message = (
            f"returned {len(items)} scores for {count} completions; return exactly one each, "
            "None where it does not apply"
        )
        return [RewardProblem(cause="count", message=message)] * count
    return [_score(row, item, weight) for row, item in enumerate(items)]


def _score(row: int, item: Any, weight: float) -> Score:
    if isinstance(item, RewardError):  # A judge gives it in place of a score.
        return RewardProblem(cause="no_score", message=str(item), completion=row)
    try:
        if isinstance(item, list | tuple):
            return tuple(sorted(_step(pair, weight) for pair in item))
        return None if item is None else _number(item, weight)
    except InvalidError as error:
        cause, message = error.args
        return RewardProblem(cause=cause, message=message, completion=row)


def _step(pair: Any, weight: float) -> tuple[int, float]:
    try:
        end, score = pair
        if int(end) == end >= 0:
            return int(end), _number(score, weight)
    except (TypeError, ValueError, OverflowError):
        pass
    raise InvalidError(
        "type",
        f"gave the step {str(pair)[:80]}; a list or tuple in place of a score has steps, each "
        '(end character, score); reasons are given by log_extra("reason", [...])',
    )


def _number(item: Any, weight: float) -> float:
    try:
        value = float(None if isinstance(item, str | bytes) else item)  # type: ignore[arg-type]
    except OverflowError:  # a whole number beyond the range of floats
        value = inf
    except (TypeError, ValueError):
        message = f"gave {type(item).__name__} {str(item)[:80]!r}; a score is a number or None"
        raise InvalidError("type", message) from None
    if not abs(value) * max(1.0, abs(weight)) <= LARGEST:  # NaN as well
        raise InvalidError(
            "value",
            f"gave {value:g} with weight {weight:g}; a score is a finite number whose "
            f"weighted sums float32 can hold, up to {LARGEST:g}, or None",
        )
    return value
