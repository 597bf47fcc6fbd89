"""Measures of tokens: their shades, on one scale for a group, and the highlights of a step."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal

from grpo_tui.app.inspector.losses import TokenLoss
from grpo_tui.experiments.values import TokenRow

HeatMode = Literal["push", "change", "kl", "teacher", "entropy", "clip"]
HEAT_NAMES: dict[HeatMode, str] = {
    "push": "push with KL",
    "change": "change of log-probability",
    "kl": "KL to the reference",
    "teacher": "teacher against policy",
    "entropy": "entropy",
    "clip": "clip state",
}
HEAT_MODES: tuple[HeatMode, ...] = tuple(HEAT_NAMES)
CLIP_SHADES = {"high": 1.0, "low": -1.0, "ceiling": -1.0, "free": 0.0}
MIN_SHADE = 0.15  # of a token that is pushed at all

Measure = Literal["clipped", "kl", "probability"]
MEASURES: dict[Measure, str] = {
    "clipped": "clipped token",
    "kl": "highest KL",
    "probability": "lowest probability",
}

OF_LOSS: Mapping[HeatMode | Measure, Callable[[TokenLoss], Any]] = {
    "push": attrgetter("gradient"),
    "kl": attrgetter("kl"),
    "clip": lambda token: CLIP_SHADES[token.side],
    "clipped": lambda token: None if token.side == "free" else token.ratio,
}
Values = tuple[float | None, ...]
Cursor = tuple[int, int, int]  # group, answer and token


def newest(row: TokenRow) -> Sequence[float]:
    """The log-probabilities after the step, or of the last pass that was recorded."""
    return row.after or (row.passes[-1] if row.passes else row.old)


def values_of(measure: HeatMode | Measure, row: TokenRow, tokens: Sequence[TokenLoss]) -> Values:
    """The measure of each token; None where there is no number, and for an environment's replies.

    `tokens` are the losses of the last pass, empty if they are not known.
    """
    values: Sequence[float | None]
    match measure:
        case "change":
            values = [new - old for old, new in zip(row.old, newest(row), strict=False)]
        case "teacher":
            values = [its - old for old, its in zip(row.old, row.teacher, strict=False)]
        case "entropy":
            values = row.entropy
        case "probability":
            values = [math.exp(min(0.0, logprob)) for logprob in row.old or row.sampler]
        case _:
            values = [OF_LOSS[measure](token) for token in tokens]
    replies = row.replies
    numbers = [
        None if value is None or not math.isfinite(value) or index in replies else value
        for index, value in enumerate(values)
    ]
    return (*numbers, *[None] * (len(row.ids) - len(numbers)))


def shades(mode: HeatMode, answers: Sequence[Values]) -> tuple[Values, ...]:
    """The shades of a group's tokens by their values, −1 to 1; the largest has the full shade."""
    low = MIN_SHADE if mode == "push" else 0.0
    largest = max((abs(value) for values in answers for value in values if value), default=1.0)

    def shade(value: float | None) -> float | None:
        return value and math.copysign(low + (1 - low) * abs(value) / largest, value)

    return tuple(tuple(map(shade, values)) for values in answers)


@dataclass(frozen=True, slots=True)
class Highlight:
    """A token with its measured value; `rank` orders the highlights of a step."""

    cursor: Cursor
    value: float
    rank: float


def highlights_of(
    measure: Measure, group: int, rows: Sequence[TokenRow], losses: Sequence[Sequence[TokenLoss]]
) -> list[Highlight]:
    """Every clipped token of a group, or the token of each answer with the extreme value.

    `losses` are those of the last pass for each row, empty where there are none.
    """
    result: list[Highlight] = []
    for row, tokens in zip(rows, losses or ((),) * len(rows), strict=True):
        candidates = [
            Highlight((group, row.index, index), value, _rank(measure, value))
            for index, value in enumerate(values_of(measure, row, tokens))
            if value is not None
        ]
        if measure != "clipped":
            candidates = sorted(candidates, key=lambda item: item.rank)[:1]
        result += candidates
    return result


def _rank(measure: Measure, value: float) -> float:
    return {"clipped": 0.0, "probability": value}.get(measure, -abs(value))


def in_order(highlights: Sequence[Highlight], groups: Sequence[int]) -> tuple[Highlight, ...]:
    """The highlights of a step: by their value, clipped tokens as the `groups` are listed."""
    return tuple(sorted(highlights, key=lambda item: (item.rank, _listed(item.cursor, groups))))


def _listed(cursor: Cursor, groups: Sequence[int]) -> Cursor:
    group, answer, token = cursor
    return groups.index(group) if group in groups else 0, answer, token


def next_highlight(
    measure: Measure,
    highlights: Sequence[Highlight],
    groups: Sequence[int],
    cursor: Cursor,
    by: int,
) -> int | None:
    """The index of the next highlight after a cursor, or the one before; None beyond the ends.

    From a token that is none, all but `clipped` begin with the first.
    """
    cursors = [item.cursor for item in highlights]
    if cursor in cursors:
        index = cursors.index(cursor) + by
    elif measure != "clipped":
        index = 0 if by > 0 else len(cursors) - 1
    else:
        before = sum(_listed(other, groups) < _listed(cursor, groups) for other in cursors)
        index = before if by > 0 else before - 1
    return index if 0 <= index < len(cursors) else None
