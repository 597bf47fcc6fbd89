"""The shade of a token: one number per token, signed or not, on one scale for its group."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from grpo_tui.app.inspector.losses import TokenLoss
from grpo_tui.experiments.values import TokenRow

HeatMode = Literal["push", "change", "kl", "entropy", "clip"]
HEAT_NAMES: dict[HeatMode, str] = {
    "push": "push with KL",
    "change": "change of log-probability",
    "kl": "KL to the reference",
    "entropy": "entropy",
    "clip": "clip state",
}
HEAT_MODES: tuple[HeatMode, ...] = tuple(HEAT_NAMES)
CLIP_SHADES = {"high": 1.0, "low": -1.0, "ceiling": -1.0, "free": 0.0}
MIN_SHADE = 0.15  # of a token that is pushed at all


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat:
    """A shade per token: −1 to 1 if signed, 0 to 1 otherwise, None if unknown."""

    mode: HeatMode
    shades: tuple[float | None, ...]

    @property
    def signed(self) -> bool:
        """Whether the sign of a shade says something."""
        return self.mode in ("push", "change", "clip")


def heat(mode: HeatMode, row: TokenRow, tokens: Sequence[TokenLoss], largest: float) -> Heat:
    """Shade the model's tokens of an answer; `largest` has the full shade."""
    low = MIN_SHADE if mode == "push" else 0.0

    def shade(value: float | None) -> float | None:
        if value is None or not math.isfinite(value):
            return None
        size = abs(value) / largest if largest else 0.0
        return math.copysign(low + (1 - low) * size, value) if value else 0.0

    return Heat(mode=mode, shades=tuple(map(shade, values_of(mode, row, tokens))))


def scales(
    rows: Sequence[TokenRow], losses: Sequence[Sequence[TokenLoss]]
) -> dict[HeatMode, float]:
    """The largest size of each measure in a group, so that its answers can be compared.

    `losses` are those of the last pass, a sequence for each row; empty where there are none.
    """
    pairs = list(zip(rows, losses or ((),) * len(rows), strict=True))

    def largest(mode: HeatMode) -> float:
        values = (value for row, tokens in pairs for value in values_of(mode, row, tokens))
        sizes = (abs(value) for value in values if value is not None and math.isfinite(value))
        return max(sizes, default=0.0)

    return {mode: largest(mode) for mode in HEAT_MODES}


def values_of(
    mode: HeatMode, row: TokenRow, tokens: Sequence[TokenLoss]
) -> tuple[float | None, ...]:
    """The measure of each token; None where it is not known, and for an environment's replies."""
    values: Sequence[float | None]
    match mode:
        case "push":
            values = [token.gradient for token in tokens]
        case "change":
            newest = row.after or (row.passes[-1] if row.passes else row.old)
            values = [new - old for old, new in zip(row.old, newest, strict=False)]
        case "kl":
            values = [token.kl for token in tokens]
        case "entropy":
            values = row.entropy
        case "clip":
            values = [CLIP_SHADES[token.side] for token in tokens]
    replies = row.replies
    return tuple(
        values[index] if index < len(values) and index not in replies else None
        for index in range(len(row.ids))
    )
