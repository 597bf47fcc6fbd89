"""Measures of tokens: their shades, on one scale for a group, and the highlights of a step."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal

from grpo_tui.app.inspector.losses import TokenLoss, latest
from grpo_tui.experiments.values import RecordedTokens

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
MIN_SHADE = 0.15  # the least shade of a token that is pushed
ROUNDING = 1e-6  # of a log-probability in float32, and so of its changes and of KL
NO_PUSH = 1e-4  # the advantage, or the like by KL, whose push is none

Measure = Literal["clipped", "kl"]
MEASURES: dict[Measure, str] = {"clipped": "clipped token", "kl": "highest KL"}

OF_LOSS: Mapping[HeatMode | Measure, Callable[[TokenLoss], Any]] = {
    "push": lambda token: 0.0 if abs(token.gradient) <= NO_PUSH * token.weight else token.gradient,
    "kl": attrgetter("kl"),
    "clip": lambda token: CLIP_SHADES[token.side],
    "clipped": lambda token: None if token.side == "free" else token.ratio,
}
Values = tuple[float | None, ...]
Cursor = tuple[int, ...]  # step, group, rollout and token, or the first of them


def newest(row: RecordedTokens) -> Sequence[float]:
    """The log-probabilities after the step, or of the last pass that was recorded."""
    return row.after or latest(row.passes) or row.old


def values_of(
    measure: HeatMode | Measure, row: RecordedTokens, tokens: Sequence[TokenLoss]
) -> Values:
    """The measure of each token; None where there is no number, and for an environment's replies.

    `tokens` are the losses of the last pass, empty if they are not known.
    """
    values: Sequence[float | None]
    against = {"change": newest(row), "teacher": row.teacher}.get(measure)
    if against is not None:
        values = [new - old for old, new in zip(row.old, against, strict=False)]
    elif measure == "entropy":
        values = row.entropy
    else:
        values = [OF_LOSS[measure](token) for token in tokens]
    replies = row.reply_positions
    numbers = [
        None if value is None or not math.isfinite(value) or index in replies else value
        for index, value in enumerate(values)
    ]
    return (*numbers, *[None] * (len(row.ids) - len(numbers)))


def shades(mode: HeatMode, rollouts: Sequence[Values]) -> tuple[Values, ...]:
    """The shades of a group's tokens by their values, −1 to 1; the largest has the full shade.

    Values of the size of rounding have none, so that a group in which nothing happened is empty.
    """
    low, nothing = (MIN_SHADE, 0.0) if mode == "push" else (0.0, ROUNDING)
    largest = max((abs(value) for values in rollouts for value in values if value), default=1.0)

    def shade(value: float | None) -> float | None:
        if value is None or abs(value) <= nothing:
            return value and 0.0
        return math.copysign(low + (1 - low) * abs(value) / largest, value)

    return tuple(tuple(map(shade, values)) for values in rollouts)


@dataclass(frozen=True, slots=True)
class Highlight:
    """A token with its measured value."""

    cursor: Cursor
    value: float


def highlights_of(
    measure: Measure, rollout: Cursor, row: RecordedTokens, losses: Sequence[TokenLoss]
) -> list[Highlight]:
    """The tokens of a rollout that have a measure; `losses` are of the last pass."""
    return [
        Highlight((*rollout, index), value)
        for index, value in enumerate(values_of(measure, row, losses))
        if value is not None
    ]


def next_highlight(highlights: Sequence[Highlight], cursor: Cursor, by: int) -> Highlight | None:
    """The next highlight in the order of tokens, or the one before; None beyond the ends."""
    if by > 0:
        return next((item for item in highlights if item.cursor > cursor), None)
    return next((item for item in reversed(highlights) if item.cursor < cursor), None)
