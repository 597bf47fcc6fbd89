"""Highlights of a step: its clipped tokens, or the token of each answer with the extreme value."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from grpo_tui.app.inspector.losses import TokenLoss
from grpo_tui.experiments.values import TokenRow

Measure = Literal["clipped", "ratio", "kl", "probability", "loss"]
MEASURES: dict[Measure, str] = {
    "clipped": "clipped token", "ratio": "highest ratio", "kl": "highest KL",
    "probability": "lowest probability", "loss": "largest share of the loss",
}  # fmt: skip
Cursor = tuple[int, int, int]  # group, answer and token


@dataclass(frozen=True, slots=True)
class Highlight:
    """A token with its measured value; `rank` orders the highlights of a step."""

    group: int
    answer: int
    token: int
    value: float
    rank: float

    @property
    def cursor(self) -> Cursor:
        return self.group, self.answer, self.token


def highlights_of(
    measure: Measure, group: int, rows: Sequence[TokenRow], losses: Sequence[Sequence[TokenLoss]]
) -> tuple[Highlight, ...]:
    """A group's highlights; `losses` of the last pass for each row, empty where there are none."""
    result: list[Highlight] = []
    for row, tokens in zip(rows, losses or ((),) * len(rows), strict=True):
        values = _values(measure, row, tokens)
        candidates = [
            Highlight(group, row.index, index, value, _rank(measure, value))
            for index, value in enumerate(values)
            if value is not None and math.isfinite(value) and index not in row.replies
        ]
        if measure != "clipped" and candidates:
            candidates = [min(candidates, key=lambda item: (item.rank, item.token))]
        result += candidates
    return tuple(result)


def _values(measure: Measure, row: TokenRow, tokens: Sequence[TokenLoss]) -> Sequence[float | None]:
    match measure:
        case "clipped":
            return [token.ratio if token.side != "free" else None for token in tokens]
        case "ratio":
            return [token.ratio for token in tokens]
        case "kl":
            return [token.kl for token in tokens]
        case "loss":
            return [token.contribution for token in tokens]
        case "probability":
            return [math.exp(min(0.0, logprob)) for logprob in row.old or row.sampler]


def _rank(measure: Measure, value: float) -> float:
    return {"clipped": 0.0, "probability": value}.get(measure, -abs(value))


def in_order(highlights: Sequence[Highlight], groups: Sequence[int]) -> tuple[Highlight, ...]:
    """The highlights of a step: by their value, clipped tokens as the `groups` are listed."""
    return tuple(sorted(highlights, key=lambda item: (item.rank, _listed(item.cursor, groups))))


def _listed(cursor: Cursor, groups: Sequence[int]) -> Cursor:
    group, answer, token = cursor
    return groups.index(group) if group in groups else 0, answer, token


def next_highlight(
    measure: Measure, highlights: Sequence[Highlight], groups: Sequence[int], cursor: Cursor,
    by: int,
) -> int | None:  # fmt: skip
    """The index of the next highlight after a cursor, or the one before; None beyond the ends.

    From a token that is none, `ratio` and the like begin with the first.
    """
    cursors = [item.cursor for item in highlights]
    if cursor in cursors:
        index = cursors.index(cursor) + by
    elif measure != "clipped":
        index = 0 if by > 0 else len(cursors) - 1
    else:
        listed = _listed(cursor, groups)
        before = sum(_listed(other, groups) < listed for other in cursors)
        index = before if by > 0 else before - 1
    return index if 0 <= index < len(cursors) else None
