"""Rewards of sampled answers: each function's scores, and the recipe's length penalty."""

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

import mlx.core as mx

from grpo_engine.events import AlertRaised, RewardValue, rewards_differ, total_reward
from grpo_engine.frozen import frozen
from grpo_engine.maths.signal import overlong_penalty

OVERLONG = "overlong"
Steps = tuple[tuple[tuple[int, float | None], ...], ...]


@frozen
class Scores:
    """Scores of B rollouts by F reward functions.

    `steps` holds (last token, score) for each step of each rollout, if a function scores steps.
    `measured` names a function that is no reward: it has a score and no part in the total.
    """

    rewards: tuple[tuple[RewardValue, ...], ...]  # [B, F]
    steps: Steps | None = None
    logged: Mapping[str, float] = field(default_factory=dict)
    alerts: tuple[AlertRaised, ...] = ()
    measured: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(reward.name for reward in self.rewards[0])

    def totals(self) -> list[float | None]:
        """The total reward of each rollout; None where no function applies, or one failed."""
        return [
            None
            if any(reward.missing for reward in row)
            else total_reward([r.value for r in row], [r.weight for r in row])
            for row in self.without(self.measured).rewards
        ]

    def without(self, name: str) -> "Scores":
        """The scores without those of one function."""
        rows = (tuple(reward for reward in row if reward.name != name) for row in self.rewards)
        return replace(self, rewards=tuple(rows))

    @property
    def differ(self) -> bool:
        """Whether any two rollouts, or any two of their steps, have different scores."""
        steps = [score for row in self.steps or () for _, score in row]
        return rewards_differ(self.totals()) or rewards_differ(steps)

    def of(self, name: str) -> list[RewardValue]:
        """A function's results for all rollouts; empty for another group's function."""
        return [reward for row in self.rewards for reward in row if reward.name == name]

    def column(self, name: str) -> list[float | None]:
        """A function's scores of all rollouts."""
        return [reward.value for reward in self.of(name)]

    def part(self, start: int, end: int) -> "Scores":
        return replace(
            self,
            rewards=self.rewards[start:end],
            steps=self.steps and self.steps[start:end],
        )


def with_overlong(scores: Scores, lengths: Sequence[int], max_length: int, share: float) -> Scores:
    """Add the soft length penalty as a further reward of weight 1; a share of 0 adds nothing.

    An answer without a score gets none: it would be its only reward.
    """
    if share == 0:
        return scores
    penalties: list[float] = overlong_penalty(mx.array(list(lengths)), max_length, share).tolist()  # type: ignore[assignment]
    rewards = tuple(
        (
            *row,
            RewardValue(
                name=OVERLONG,
                weight=1.0,
                value=penalty if any(r.value is not None for r in row) else None,
                reason=f"{length} of {max_length} tokens" if penalty < 0 else "",
            ),
        )
        for row, penalty, length in zip(scores.rewards, penalties, lengths, strict=True)
    )
    return replace(scores, rewards=rewards)
