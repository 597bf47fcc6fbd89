"""The shade of a token: one number per token, signed or not, from its term."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from app.inspector.values import TokenTerm
from experiments.values import TokenRow

HeatMode = Literal["push", "change", "kl", "entropy", "clip"]
HEAT_MODES: tuple[HeatMode, ...] = ("push", "change", "kl", "entropy", "clip")
HEAT_NAMES: dict[HeatMode, str] = {
    "push": "advantage × ratio",
    "change": "change of log-probability",
    "kl": "KL to the reference",
    "entropy": "entropy",
    "clip": "clip state",
}


LEAST = 0.15  # the least shade of a token that is pushed at all


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat:
    """A shade per token: −1 to 1 if signed, 0 to 1 otherwise, None if unknown."""

    mode: HeatMode
    signed: bool
    shades: tuple[float | None, ...]
    values: tuple[float | None, ...]


def heat(mode: HeatMode, row: TokenRow, terms: Sequence[TokenTerm]) -> Heat:
    """Shade the model's tokens of an answer, relative to the largest value of the answer."""
    replies = row.replies
    values = tuple(
        None if place in replies else value for place, value in enumerate(_values(mode, row, terms))
    )
    finite = [abs(v) for v in values if v is not None and math.isfinite(v)]
    # ratios are all near 1, so shade them by their distance above the smallest
    floor = min(finite, default=0.0) if mode == "push" else 0.0
    span = max(finite, default=0.0) - floor

    def shade(value: float | None) -> float | None:
        if value is None or not math.isfinite(value):
            return None
        size = (abs(value) - floor) / span if span else 0.0
        return math.copysign(LEAST + (1 - LEAST) * size if floor else size, value)

    shades = tuple(shade(value) for value in values)
    signed = mode in ("push", "change", "clip")
    return Heat(mode=mode, signed=signed, shades=shades, values=values)


def _values(mode: HeatMode, row: TokenRow, terms: Sequence[TokenTerm]) -> tuple[float | None, ...]:
    count = len(row.ids)
    match mode:
        case "push":
            weights = [term.importance * term.updated for term in terms]
            pushes = [t.advantage * t.ratio * w for t, w in zip(terms, weights, strict=True)]
            return _padded(pushes, count)
        case "change":
            return _padded([b - a for a, b in zip(row.old, _newest(row), strict=True)], count)
        case "kl":
            return _padded([term.kl for term in terms], count)
        case "entropy":
            return _padded(row.entropy, count)
        case "clip":
            signs = {"high": 1.0, "low": -1.0, "ceiling": -1.0, "free": 0.0}
            return _padded([signs[term.side] for term in terms], count)


def _padded(values: Sequence[float | None], count: int) -> tuple[float | None, ...]:
    return (*values, *(None,) * count)[:count]


def _newest(row: TokenRow) -> tuple[float, ...]:
    return row.after or (row.passes[-1] if row.passes else row.old)
