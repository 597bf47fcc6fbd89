"""The shade of a token: one number per token, signed or not, on one scale for its group."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from grpo_tui.app.inspector.values import TokenTerm
from grpo_tui.experiments.values import TokenRow

HeatMode = Literal["push", "change", "kl", "entropy", "clip"]
HEAT_MODES: tuple[HeatMode, ...] = ("push", "change", "kl", "entropy", "clip")
HEAT_NAMES: dict[HeatMode, str] = {
    "push": "push with KL",
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


def heat(mode: HeatMode, row: TokenRow, terms: Sequence[TokenTerm], largest: float) -> Heat:
    """Shade the model's tokens of an answer; `largest` has the full shade."""
    values = _of_model(mode, row, terms)

    def shade(value: float | None) -> float | None:
        if value is None or not math.isfinite(value):
            return None
        size = abs(value) / largest if largest else 0.0
        least = LEAST if mode == "push" and value else 0.0
        return math.copysign(least + (1 - least) * size, value)

    signed = mode in ("push", "change", "clip")
    return Heat(mode=mode, signed=signed, shades=tuple(map(shade, values)), values=values)


def scales(rows: Sequence[TokenRow], terms: Sequence[Sequence[TokenTerm]]) -> dict[HeatMode, float]:
    """The largest size of each measure in a group, so that its answers can be compared.

    `terms` are those of the last pass, a sequence for each row; empty where there are none.
    """

    def largest(mode: HeatMode) -> float:
        pairs = zip(rows, terms or ((),) * len(rows), strict=True)
        values = (value for row, own in pairs for value in _of_model(mode, row, own))
        sizes = (abs(value) for value in values if value is not None and math.isfinite(value))
        return max(sizes, default=0.0)

    return {mode: largest(mode) for mode in HEAT_MODES}


def _of_model(
    mode: HeatMode, row: TokenRow, terms: Sequence[TokenTerm]
) -> tuple[float | None, ...]:
    """The measure of each token, None for those of the environment's replies."""
    values, replies = _values(mode, row, terms), row.replies
    return tuple(None if place in replies else value for place, value in enumerate(values))


def _values(mode: HeatMode, row: TokenRow, terms: Sequence[TokenTerm]) -> tuple[float | None, ...]:
    count = len(row.ids)
    match mode:
        case "push":
            return _padded([term.slope for term in terms], count)
        case "change":
            return _padded([b - a for a, b in zip(row.old, _newest(row), strict=False)], count)
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
