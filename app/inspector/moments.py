"""Moments: the tokens worth a look, such as the clipped ones or the answer's highest ratio."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from grpo_tui.app.inspector.values import TokenTerm
from grpo_tui.experiments.values import TokenRow

Measure = Literal["clipped", "ratio", "kl", "probability", "term"]
MEASURES: dict[Measure, tuple[str, str]] = {
    "clipped": ("clipped tokens", "in reading order"),
    "ratio": ("highest ratio", "of each answer, the largest first"),
    "kl": ("highest KL", "of each answer, the furthest first"),
    "probability": ("lowest probability", "of each answer, the lowest first"),
    "term": ("largest term", "of each answer, the largest first"),
}


@dataclass(frozen=True, slots=True)
class Moment:
    """A token with its measured value; `rank` orders the moments of a step."""

    group: int
    answer: int
    token: int
    value: float
    rank: float


def moments_of(
    measure: Measure, group: int, rows: Sequence[TokenRow], terms: Sequence[Sequence[TokenTerm]]
) -> tuple[Moment, ...]:
    """The moments of a group's answers: every clipped token, or the extreme token of each answer.

    `terms` are those of the last pass, a sequence for each row; empty where there are none.
    """
    found: list[Moment] = []
    for place, row in enumerate(rows):
        own = terms[place] if place < len(terms) else ()
        replies = row.replies
        if measure == "clipped":
            found += [
                Moment(group, row.index, at, term.ratio, 0.0)
                for at, term in enumerate(own) if term.side != "free" and at not in replies
            ]  # fmt: skip
            continue
        known = [
            (value, at) for at, value in enumerate(_values(measure, row, own))
            if value is not None and math.isfinite(value) and at not in replies
        ]  # fmt: skip
        if known:
            sign = 1.0 if measure == "probability" else -1.0
            rank, at, value = min((sign * abs(value), at, value) for value, at in known)
            found.append(Moment(group, row.index, at, value, rank))
    return tuple(found)


def _values(measure: Measure, row: TokenRow, terms: Sequence[TokenTerm]) -> Sequence[float | None]:
    match measure:
        case "ratio":
            return [term.ratio for term in terms]
        case "kl":
            return [term.kl for term in terms]
        case "term":
            return [term.contribution for term in terms]
    return [math.exp(min(0.0, logprob)) for logprob in row.old or row.sampler]


def in_order(
    measure: Measure, moments: Sequence[Moment], groups: Sequence[int]
) -> tuple[Moment, ...]:
    """The moments of a step: clipped ones as its groups are listed, others by their value."""
    places = {group: place for place, group in enumerate(groups)}
    if measure == "clipped":
        return tuple(sorted(moments, key=lambda m: (places[m.group], m.answer, m.token)))
    return tuple(sorted(moments, key=lambda m: (m.rank, places[m.group], m.answer, m.token)))


def next_moment(
    measure: Measure, ordered: Sequence[Moment], groups: Sequence[int],
    here: tuple[int, int, int], by: int,
) -> int | None:  # fmt: skip
    """The place of the next moment after a cursor, or the one before; None beyond the ends.

    From a token that is no moment, `ratio` and the like begin with the first.
    """
    keys = [(one.group, one.answer, one.token) for one in ordered]
    if here in keys:
        place = keys.index(here) + by
    elif measure != "clipped":
        place = 0 if by > 0 else len(keys) - 1
    else:
        order = {group: place for place, group in enumerate(groups)}
        at = (order.get(here[0], 0), here[1], here[2])
        before = sum((order[key[0]], key[1], key[2]) < at for key in keys)
        place = before if by > 0 else before - 1
    return place if 0 <= place < len(keys) else None
