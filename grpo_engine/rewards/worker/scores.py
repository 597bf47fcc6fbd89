"""Validates the return value of a reward function: one score per completion."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

Steps = list[tuple[int, float]]


@dataclass(slots=True)
class Scores:
    """Valid scores of one call; `odd` lists (completion or None, kind, message) of invalid ones.

    A score is a float or None. `steps[i]` has the (end character, score) pairs of a process reward,
    whose score is their mean.
    """

    values: list[float | None] = field(default_factory=list)
    steps: list[Steps | None] = field(default_factory=list)
    odd: list[tuple[int | None, str, str]] = field(default_factory=list)


def read_scores(output: Any, count: int) -> Scores:
    """Check what a function returned; NaN means None, as in TRL."""
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
    scores = Scores()
    for index, item in enumerate(items):
        value, steps, kind, message = _score(item)
        scores.values.append(value)
        scores.steps.append(steps)
        if kind:
            scores.odd.append((index, kind, message))
    return scores


def _score(item: Any) -> tuple[float | None, Steps | None, str, str]:
    if item is None:
        return None, None, "", ""
    if isinstance(item, list | tuple):
        return _steps(item)
    value = _number(item)
    if value is None:
        kind = type(item).__name__
        return None, None, "type", f"gave {kind} {str(item)[:80]!r}; a score is a number or None"
    if math.isnan(value):
        return None, None, "", ""
    if math.isinf(value):
        return None, None, "value", f"gave {value}; a score must be finite"
    return value, None, "", ""


def _steps(item: list[Any] | tuple[Any, ...]) -> tuple[float | None, Steps | None, str, str]:
    steps: Steps = []
    for pair in item:
        ok = isinstance(pair, list | tuple) and len(pair) == 2
        end, score = (_number(pair[0]), _number(pair[1])) if ok else (None, None)
        if end is None or score is None or not math.isfinite(score) or end != int(end) or end < 0:
            message = f"gave the step {str(pair)[:80]}; a step is (end character, finite score)"
            return None, None, "type", message
        steps.append((int(end), score))
    steps.sort()
    mean = sum(score for _, score in steps) / len(steps) if steps else None
    return mean, steps, "", ""


def _number(item: Any) -> float | None:
    if isinstance(item, str | bytes):
        return None
    try:
        return float(item)
    except (TypeError, ValueError, OverflowError):
        return None
