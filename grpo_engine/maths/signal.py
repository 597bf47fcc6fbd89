"""Choice 1, signal: a completion's advantage, from its reward and those of its siblings.

From rewards r [B] and siblings; every signal is [B], 0 where there is no reward. `process` reads
rewards of steps instead and gives [B,T]; `gae` is in critic.py.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx

from grpo_engine.config.recipes import Recipe
from grpo_engine.errors import MathsError
from grpo_engine.events import EQUAL_REWARDS

Steps = Sequence[Sequence[tuple[int, float | None]]]


@dataclass(frozen=True, slots=True)
class Siblings:
    """Scores [B], and which completions are siblings [B,B]."""

    score: mx.array  # 0 where there is no score
    valid: mx.array  # has a score
    members: mx.array  # members[i,j]: j has a score and i is compared with it

    def in_batch(self) -> "Siblings":
        """The same scores with the whole batch as siblings."""
        members = mx.broadcast_to(self.valid[None, :], self.members.shape)
        return Siblings(self.score, self.valid, members)

    @property
    def count(self) -> mx.array:
        """Number of siblings with a score. [B]"""
        return self.members.astype(mx.float32).sum(axis=1)

    @property
    def mean(self) -> mx.array:
        """Mean score of the siblings, 0 if there are none. [B]"""
        total = mx.where(self.members, self.score[None, :], 0.0).sum(axis=1)
        return total / mx.maximum(self.count, 1.0)

    @property
    def differ(self) -> mx.array:
        """max - min > 1e-6·|max|: the scores differ by more than rounding. [B]"""
        highest = mx.where(self.members, self.score[None, :], -mx.inf).max(axis=1)
        lowest = mx.where(self.members, self.score[None, :], mx.inf).min(axis=1)
        return highest - lowest > EQUAL_REWARDS * mx.abs(highest)

    def std(self, divisor: str) -> mx.array:
        """√(Σ_j (r_j - mean)²/n), with n-1 for `sample`; 0 if all scores are equal. [B]

        Deviations are scaled by the largest, so that their squares neither overflow nor underflow.
        """
        deviation = mx.where(self.members, self.score[None, :] - self.mean[:, None], 0.0)
        scale = mx.abs(deviation).max(axis=1)
        unit = deviation / mx.where(scale > 0, scale, 1.0)[:, None]
        count = mx.maximum(self.count - (divisor == "sample"), 1.0)
        return mx.where(self.differ, scale * mx.sqrt((unit * unit).sum(axis=1) / count), 0.0)


def siblings(score: mx.array, group_ids: mx.array) -> Siblings:
    """Make the completions of each group siblings; NaN means no score."""
    valid = ~mx.isnan(score)
    same = group_ids[:, None] == group_ids[None, :]
    return Siblings(mx.where(valid, score, 0.0), valid, same & valid[None, :])


def plain(group: Siblings, _recipe: Recipe) -> mx.array:
    """A_i = r_i: REINFORCE (Williams, 1992)."""
    return group.score


def minus_batch_mean(group: Siblings, _recipe: Recipe) -> mx.array:
    """A_i = r_i - mean(r) over the batch: REINFORCE with a baseline."""
    return group.score - group.in_batch().mean


def group_mean(group: Siblings, _recipe: Recipe) -> mx.array:
    """A_i = r_i - mean(r of the group): Dr. GRPO (arXiv:2503.20783)."""
    return mx.where(group.differ, group.score - group.mean, 0.0)


def standard(deviation: mx.array, std: mx.array, eps: float) -> mx.array:
    """(r - mean)/(std + ε), a literal 0 if all rewards are equal. [B]"""
    return mx.where(std > 0, deviation / (std + eps), 0.0)


def group_standard(group: Siblings, recipe: Recipe) -> mx.array:
    """A_i = (r_i - mean)/(std + ε) over the group: GRPO (arXiv:2402.03300, eq. 3)."""
    return standard(group.score - group.mean, group.std(recipe.std), recipe.signal_eps)


def batch_standard(group: Siblings, recipe: Recipe) -> mx.array:
    """A_i = (r_i - mean of the group)/(std of the batch's raw rewards + ε).

    TRL's scale_rewards="batch" (arXiv:2508.08221): an easy group counts less than a hard one.
    """
    return standard(group_mean(group, recipe), group.in_batch().std(recipe.std), recipe.signal_eps)


def leave_one_out(group: Siblings, recipe: Recipe) -> mx.array:
    """A_i = r_i - mean of the others = (r_i - mean)·n/(n-1): RLOO (arXiv:2402.14740)."""
    return group_mean(group, recipe) * group.count / mx.maximum(group.count - 1, 1.0)


def group_sign(group: Siblings, recipe: Recipe) -> mx.array:
    """A_i = sign(r_i - mean), 0 if |r_i - mean| ≤ 0.1·std of the group."""
    above = group_mean(group, recipe)
    return mx.where(mx.abs(above) > 0.1 * group.std(recipe.std), mx.sign(above), 0.0)


def no_signal(group: Siblings, _recipe: Recipe) -> mx.array:
    """A_i = 0: a teacher alone gives advantages."""
    return mx.zeros(group.score.shape)


def demonstration(group: Siblings, _recipe: Recipe) -> mx.array:
    """A_i = 1, with or without a reward: the gradient of the data's likelihood."""
    return mx.ones(group.score.shape)


SIGNALS: dict[str, Callable[[Siblings, Recipe], mx.array]] = {
    "return": plain,
    "minus_batch_mean": minus_batch_mean,
    "group_mean": group_mean,
    "group_standard": group_standard,
    "leave_one_out": leave_one_out,
    "batch_standard": batch_standard,
    "group_sign": group_sign,
    "none": no_signal,
    "demonstration": demonstration,
}


def signal(group: Siblings, recipe: Recipe) -> mx.array:
    """The recipe's signal of scores [B]; a sampled completion without a score gets 0."""
    advantage = SIGNALS[recipe.signal](group, recipe)
    return advantage if recipe.demonstrates else mx.where(group.valid, advantage, 0.0)


def normalize_then_sum(
    rewards: mx.array, weights: mx.array, group_ids: mx.array, recipe: Recipe
) -> tuple[mx.array, mx.array]:
    """A = (x - mean(x))/(std(x) + ε) over the batch, x_i = Σ_f w_f·signal(r_f)_i. [B,F] -> [B]

    TRL's name for it (GDPO, arXiv:2601.05242): every function counts by its weight, whatever its
    scale. A group in which every function gives equal scores gets a literal 0; the second array
    says which do not: some function that counts scores them differently.
    """
    columns = [siblings(rewards[:, f], group_ids) for f in range(rewards.shape[1])]
    terms = mx.stack([signal(column, recipe) for column in columns], axis=1) * weights
    scored = mx.stack([column.valid for column in columns], axis=1).any(axis=1)
    cancels = mx.abs(terms.sum(axis=1)) <= EQUAL_REWARDS * mx.abs(terms).sum(axis=1)
    x = mx.where(scored, mx.where(cancels, 0.0, terms.sum(axis=1)), mx.nan)
    batch = siblings(x, mx.zeros(x.shape))
    advantages = standard(batch.score - batch.mean, batch.std(recipe.std), recipe.signal_eps)
    differ = mx.stack([column.differ for column in columns], axis=1) & (weights != 0)
    differ = differ.any(axis=1)
    return mx.where(batch.valid & differ, advantages, 0.0), differ


def process(steps: Steps, group_ids: mx.array, mask: mx.array, recipe: Recipe) -> mx.array:
    """A_it = Σ of the normalised rewards of i's steps that end at or after token t. [B,T]

    `steps[i]` lists (index of the step's last token, score). r̃ = (r - mean)/(std + ε) over all
    step rewards of the group; tokens after the last step get 0. GRPO (arXiv:2402.03300, §4.1.3).
    """
    flat = _scored(steps, mask)
    if not flat:
        return mx.zeros(mask.shape)
    rows = mx.array([row for row, _, _ in flat])
    ends = mx.array([end for _, end, _ in flat])
    scores = mx.array([score for _, _, score in flat], dtype=mx.float32)
    normal = group_standard(siblings(scores, group_ids[rows]), recipe)  # [S]
    is_of_row = mx.arange(mask.shape[0])[:, None] == rows[None, :]  # [B,S]
    ends_after = ends[:, None] >= mx.arange(mask.shape[1])[None, :]  # [S,T]
    credit = mx.where(is_of_row, normal[None, :], 0.0) @ ends_after.astype(mx.float32)
    return mx.where(mask, credit, 0.0)


def _scored(steps: Steps, mask: mx.array) -> list[tuple[int, int, float]]:
    """(completion, last token, score) of every scored step; refuse a token outside the array."""
    rows, columns = mask.shape
    if len(steps) != rows:
        raise MathsError(f"steps must list {rows} completions, got {len(steps)}")
    for row, ends in enumerate(steps):
        for end, _ in ends:
            if not 0 <= end < columns:
                raise MathsError(
                    f"step of completion {row} ends at token {end}, not in 0..{columns - 1}"
                )
    return [
        (row, end, score)
        for row, ends in enumerate(steps)
        for end, score in ends
        if score is not None and not math.isnan(score)
    ]


def overlong_penalty(length: mx.array, max_length: int, buffer_share: float) -> mx.array:
    """DAPO's soft length penalty (arXiv:2503.14476, eq. 13), added to the reward. [B]

    With buffer = share·L_max: 0 up to L_max - buffer, then (L_max - buffer - |o|)/buffer, never
    below -1. A share of 0 gives 0.
    """
    buffer = buffer_share * max_length
    if buffer == 0:
        return mx.zeros(length.shape)
    over = (max_length - buffer - length.astype(mx.float32)) / buffer
    return mx.clip(over, -1.0, 0.0)
