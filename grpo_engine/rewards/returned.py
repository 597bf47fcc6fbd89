"""Validates the return value of a reward function: one score per completion."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Steps = list[tuple[int, float]]

# The largest score times its weight: sums over a step's answers stay within float32, 3.4e38.
LARGEST = 1e30


class InvalidError(Exception):
    """An item of a function's return value is no score: the kind of problem and a message."""


@dataclass(slots=True)
class Scores:
    """Valid scores of one call; `invalid` lists (completion or None, kind, message) of the others.

    A score is a float or None. `steps[i]` has the (end character, score) pairs of a process reward,
    whose score is their mean.
    """

    values: list[float | None]
    steps: list[Steps | None]
    invalid: list[tuple[int | None, str, str]]


def read_scores(output: Any, count: int, weight: float = 1.0) -> Scores:
    """Check what a function returned; a score that float32 cannot hold or add up becomes None."""
    if isinstance(output, str | bytes | dict) or not isinstance(output, Iterable):
        kind = type(output).__name__
        message = f"returned {kind}, not one score per completion; return a list of {count} numbers"
        return Scores([None] * count, [None] * count, [(None, "type", message)])
    items = output.tolist() if hasattr(output, "tolist") else list(output)
    if not isinstance(items, list):
        items = [items]
    if len(items) != count:
        message = (
            f"returned {len(items)} scores for {count} completions; return exactly one each, "
            "None where it does not apply"
        )
        return Scores([None] * count, [None] * count, [(None, "count", message)])
    scores = Scores([], [], [])
    for index, item in enumerate(items):
        value = steps = None
        try:
            value, steps = _score(item, weight)
        except InvalidError as error:
            kind, message = error.args
            scores.invalid.append((index, kind, message))
        scores.values.append(value)
        scores.steps.append(steps)
    return scores


def _score(item: Any, weight: float) -> tuple[float | None, Steps | None]:
    if item is None:
        return None, None
    if isinstance(item, list | tuple):
        return _steps(item, weight)
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


def _steps(item: Sequence[Any], weight: float) -> tuple[float | None, Steps]:
    steps: Steps = []
    for pair in item:
        ok = isinstance(pair, list | tuple) and len(pair) == 2
        end, score = (_number(pair[0]), _number(pair[1])) if ok else (None, None)
        legal = end is not None and math.isfinite(end) and end == int(end) and end >= 0
        if end is None or score is None or not legal:
            message = f"gave the step {str(pair)[:80]}; a step is (end character, score)"
            raise InvalidError("type", message)
        if message := _unusable(score, weight):
            raise InvalidError("value", f"{message} (step {str(pair)[:80]})")
        steps.append((int(end), score))
    steps.sort()
    mean = sum(score for _, score in steps) / len(steps) if steps else None
    return mean, steps


def _number(item: Any) -> float | None:
    if isinstance(item, str | bytes):
        return None
    try:
        return float(item)
    except OverflowError:  # a whole number beyond the range of floats
        return math.inf if item > 0 else -math.inf
    except (TypeError, ValueError):
        return None
