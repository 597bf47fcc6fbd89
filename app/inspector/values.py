"""The inspector's numbers for an answer's tokens in one pass."""

from dataclasses import dataclass
from typing import Literal

Side = Literal["free", "low", "high", "ceiling"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTerm:
    """One token's part in the loss; `contribution` is what it adds to the objective.

    `push` and `pull` are the objective's slope in the token's log-probability: that of the
    advantages, and that of the KL term. The objective is maximised: above 0 is up.
    """

    advantage: float
    new: float
    old: float
    reference: float | None
    ratio: float
    low: float
    high: float
    side: Side
    clamped: bool
    in_loss: bool
    updated: bool
    importance: float
    on_policy: bool
    objective: float
    weight: float
    anchor: float
    kl: float | None
    target: float | None
    entropy: float | None
    value_loss: float
    bonus: float
    contribution: float
    push: float
    pull: float

    @property
    def slope(self) -> float:
        """Which way the loss moves the token's log-probability, and how strongly."""
        return self.push + self.pull
