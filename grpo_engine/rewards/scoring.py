"""Rewards of sampled answers: what each function gave, and what the recipe adds of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import mlx.core as mx
import numpy as np

from grpo_engine.events import AlertRaised, total_reward
from grpo_engine.maths.around import overlong_penalty

OVERLONG = "overlong"
Steps = tuple[tuple[tuple[int, float | None], ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What reward functions F gave answers B; None where a function does not apply.

    `steps` are (last token, score) of each step of each answer, where a function scores steps.
    """

    names: tuple[str, ...]
    weights: tuple[float, ...]
    values: tuple[tuple[float | None, ...], ...]  # [B, F]
    reasons: tuple[tuple[str, ...], ...] = ()  # [B, F]
    steps: Steps | None = None
    logged: Mapping[str, float] = field(default_factory=dict)
    alerts: tuple[AlertRaised, ...] = ()

    def totals(self) -> list[float | None]:
        """The total reward of each answer."""
        return [total_reward(row, self.weights) for row in self.values]

    @property
    def differ(self) -> bool:
        """Whether some answer, or some step of an answer, scored otherwise than another.

        Totals are compared in float32, in which advantages are computed.
        """
        totals = {np.float32(total) for total in self.totals() if total is not None}
        steps = {score for row in self.steps or () for _, score in row if score is not None}
        return len(totals) > 1 or len(steps) > 1

    def column(self, name: str) -> list[float | None]:
        """The values of one function."""
        place = self.names.index(name)
        return [row[place] for row in self.values]

    def part(self, start: int, end: int) -> "Scores":
        """The scores of answers `start` to `end`."""
        return replace(
            self,
            values=self.values[start:end],
            reasons=self.reasons[start:end],
            steps=None if self.steps is None else self.steps[start:end],
        )


def with_overlong(scores: Scores, lengths: Sequence[int], max_length: int, share: float) -> Scores:
    """Add the soft length penalty as one more reward of weight 1; a share of 0 adds nothing."""
    if share == 0:
        return scores
    penalties: list[float] = overlong_penalty(mx.array(list(lengths)), max_length, share).tolist()  # type: ignore[assignment]
    reasons = scores.reasons or tuple(("",) * len(scores.names) for _ in scores.values)
    return replace(
        scores,
        names=(*scores.names, OVERLONG),
        weights=(*scores.weights, 1.0),
        values=tuple(
            (*row, penalty) for row, penalty in zip(scores.values, penalties, strict=True)
        ),
        reasons=tuple(
            (*row, f"{length} of {max_length} tokens" if penalty < 0 else "")
            for row, penalty, length in zip(reasons, penalties, lengths, strict=True)
        ),
    )
