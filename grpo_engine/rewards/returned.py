"""Validates the return value of a reward function: one score per completion."""

import math
from collections.abc import Iterable
from typing import Any

from grpo_engine.errors import RewardError
from grpo_engine.rewards.outcome import Cause, Outcome, RewardProblem, Steps

# The largest score times its weight: sums over a step's answers stay within float32, 3.4e38.
LARGEST = 1e30


class InvalidError(Exception):
    """A function's return value, or an item of it, is no score."""

    def __init__(self, cause: Cause, message: str) -> None:
        super().__init__(message)
        self.cause = cause


def read_scores(output: Any, count: int, weight: float = 1.0) -> Outcome:
    """Check what a function returned; a score that float32 cannot hold or add up becomes None."""
    try:
        items = _items(output, count)
    except InvalidError as error:
        problem = RewardProblem(cause=error.cause, message=str(error))
        return Outcome.failed(count, problem)
    outcome = Outcome()
    for index, item in enumerate(items):
        value = steps = None
        try:
            value, steps = _score(item, weight)
        except InvalidError as error:
            problem = RewardProblem(cause=error.cause, message=str(error), completion=index)
            outcome.problems.append(problem)
        outcome.values.append(value)
        outcome.steps.append(steps)
    return outcome


def _items(output: Any, count: int) -> list[Any]:
    if isinstance(output, str | bytes | dict) or not isinstance(output, Iterable):
        raise InvalidError(
            "type",
            f"returned {type(output).__name__}, not one score per completion; return a list of "
            f"{count} numbers",
        )
    items = output.tolist() if hasattr(output, "tolist") else list(output)
    items = items if isinstance(items, list) else [items]
    if len(items) != count:
        raise InvalidError(
            "count",
            f"returned {len(items)} scores for {count} completions; return exactly one each, "
            "None where it does not apply",
        )
    return items


def _score(item: Any, weight: float) -> tuple[float | None, Steps | None]:
    if item is None:
        return None, None
    if isinstance(item, RewardError):  # of a judge, in place of a score
        raise InvalidError("no_score", str(item))
    if isinstance(item, list | tuple):
        steps = tuple(sorted(_step(pair, weight) for pair in item))
        return (sum(score for _, score in steps) / len(steps) if steps else None), steps
    value = _number(item)
    if value is None:
        kind = type(item).__name__
        raise InvalidError("type", f"gave {kind} {str(item)[:80]!r}; a score is a number or None")
    if message := _unusable(value, weight):
        raise InvalidError("value", message)
    return value, None


def _unusable(score: float, weight: float) -> str:
    """Why a number cannot be a score; empty if it can."""
    if math.isnan(score):
        return "gave NaN, scored None; return None where the function does not apply"
    if math.isinf(score):
        return f"gave {score}, scored None; a score must be finite"
    if abs(score) * max(1.0, abs(weight)) > LARGEST:
        weighted = f" with weight {weight:g}" if abs(weight) > 1 else ""
        return f"gave {score:g}{weighted}, scored None; float32 adds up scores to {LARGEST:g} only"
    return ""


def _step(pair: Any, weight: float) -> tuple[int, float]:
    is_pair = isinstance(pair, list | tuple) and len(pair) == 2
    end, score = map(_number, pair) if is_pair else (None, None)
    if end is None or score is None or not (0 <= end < math.inf and end == int(end)):
        message = f"gave the step {str(pair)[:80]}; a step is (end character, score)"
        raise InvalidError("type", message)
    if message := _unusable(score, weight):
        raise InvalidError("value", f"{message} (step {str(pair)[:80]})")
    return int(end), score


def _number(item: Any) -> float | None:
    if isinstance(item, str | bytes):
        return None
    try:
        return float(item)
    except OverflowError:  # a whole number beyond the range of floats
        return math.inf if item > 0 else -math.inf
    except (TypeError, ValueError):
        return None
