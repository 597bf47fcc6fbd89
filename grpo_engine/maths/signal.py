"""Choice 1, signal: a completion's advantage, from its reward and those of its siblings.

Every signal is [B], 0 where there is no reward. `process` reads rewards of steps instead and gives
[B,T]; `gae` is in critic.py.
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
    """Scores of completions, and which of them are compared with each other."""

    scores_B: mx.array  # 0 where there is no score
    valid_B: mx.array  # has a score
    members_BB: mx.array  # members_BB[i,j]: j has a score and i is compared with it

    def in_batch(self) -> "Siblings":
        """The same scores with the whole batch as siblings."""
        members_BB = mx.broadcast_to(self.valid_B[None, :], self.members_BB.shape)
        return Siblings(self.scores_B, self.valid_B, members_BB)

    @property
    def count_B(self) -> mx.array:
        """Number of siblings with a score."""
        return self.members_BB.astype(mx.float32).sum(axis=1)

    @property
    def mean_B(self) -> mx.array:
        """Mean score of the siblings, 0 if there are none."""
        total_B = mx.where(self.members_BB, self.scores_B[None, :], 0.0).sum(axis=1)
        return total_B / mx.maximum(self.count_B, 1.0)

    @property
    def differ_B(self) -> mx.array:
        """max - min > 1e-6·|max|: the scores differ by more than rounding."""
        highest_B = mx.where(self.members_BB, self.scores_B[None, :], -mx.inf).max(axis=1)
        lowest_B = mx.where(self.members_BB, self.scores_B[None, :], mx.inf).min(axis=1)
        return highest_B - lowest_B > EQUAL_REWARDS * mx.abs(highest_B)

    def std(self, divisor: str) -> mx.array:
        """√(Σ_j (r_j - mean)²/n), with n-1 for `sample`; 0 if all scores are equal. [B]

        Deviations are scaled by the largest, so that their squares neither overflow nor underflow.
        """
        deviation_BB = self.scores_B[None, :] - self.mean_B[:, None]
        deviation_BB = mx.where(self.members_BB, deviation_BB, 0.0)
        scale_B = mx.abs(deviation_BB).max(axis=1)
        unit_BB = deviation_BB / mx.where(scale_B > 0, scale_B, 1.0)[:, None]
        count_B = mx.maximum(self.count_B - (divisor == "sample"), 1.0)
        std_B = scale_B * mx.sqrt((unit_BB * unit_BB).sum(axis=1) / count_B)
        return mx.where(self.differ_B, std_B, 0.0)


def siblings(scores_B: mx.array, group_ids_B: mx.array) -> Siblings:
    """Make the completions of each group siblings; NaN means no score."""
    valid_B = ~mx.isnan(scores_B)
    same_BB = group_ids_B[:, None] == group_ids_B[None, :]
    return Siblings(mx.where(valid_B, scores_B, 0.0), valid_B, same_BB & valid_B[None, :])


def plain(group: Siblings, _recipe: Recipe) -> mx.array:
    """A_i = r_i: REINFORCE (Williams, 1992)."""
    return group.scores_B


def minus_batch_mean(group: Siblings, _recipe: Recipe) -> mx.array:
    """A_i = r_i - mean(r) over the batch: REINFORCE with a baseline."""
    return group.scores_B - group.in_batch().mean_B


def group_mean(group: Siblings, _recipe: Recipe) -> mx.array:
    """A_i = r_i - mean(r of the group): Dr. GRPO (arXiv:2503.20783)."""
    return mx.where(group.differ_B, group.scores_B - group.mean_B, 0.0)


def standard(deviation_B: mx.array, std_B: mx.array, eps: float) -> mx.array:
    """(r - mean)/(std + ε), a literal 0 if all rewards are equal. [B]"""
    return mx.where(std_B > 0, deviation_B / (std_B + eps), 0.0)


def group_standard(group: Siblings, recipe: Recipe) -> mx.array:
    """A_i = (r_i - mean)/(std + ε) over the group: GRPO (arXiv:2402.03300, eq. 3)."""
    return standard(group.scores_B - group.mean_B, group.std(recipe.std), recipe.signal_eps)


def batch_standard(group: Siblings, recipe: Recipe) -> mx.array:
    """A_i = (r_i - mean of the group)/(std of the batch's raw rewards + ε).

    TRL's scale_rewards="batch" (arXiv:2508.08221): an easy group counts less than a hard one.
    """
    return standard(group_mean(group, recipe), group.in_batch().std(recipe.std), recipe.signal_eps)


def leave_one_out(group: Siblings, recipe: Recipe) -> mx.array:
    """A_i = r_i - mean of the others = (r_i - mean)·n/(n-1): RLOO (arXiv:2402.14740)."""
    count_B = group.count_B
    return group_mean(group, recipe) * count_B / mx.maximum(count_B - 1, 1.0)


def group_sign(group: Siblings, recipe: Recipe) -> mx.array:
    """A_i = sign(r_i - mean), 0 if |r_i - mean| ≤ 0.1·std of the group."""
    deviation_B = group_mean(group, recipe)
    is_far_B = mx.abs(deviation_B) > 0.1 * group.std(recipe.std)
    return mx.where(is_far_B, mx.sign(deviation_B), 0.0)


def no_signal(group: Siblings, _recipe: Recipe) -> mx.array:
    """A_i = 0: a teacher alone gives advantages."""
    return mx.zeros(group.scores_B.shape)


def demonstration(group: Siblings, _recipe: Recipe) -> mx.array:
    """A_i = 1, with or without a reward: the gradient of the data's likelihood."""
    return mx.ones(group.scores_B.shape)


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
    advantages_B = SIGNALS[recipe.signal](group, recipe)
    return advantages_B if recipe.demonstrates else mx.where(group.valid_B, advantages_B, 0.0)


def normalize_then_sum(
    rewards_BF: mx.array, weights_F: mx.array, group_ids_B: mx.array, recipe: Recipe
) -> tuple[mx.array, mx.array]:
    """A = (x - mean(x))/(std(x) + ε) over the batch, x_i = Σ_f w_f·signal(r_f)_i. [B]

    TRL's name for it (GDPO, arXiv:2601.05242): every function counts by its weight, whatever its
    scale. A group in which every function gives equal scores gets a literal 0; the second array
    says which do not: some function that counts scores them differently.
    """
    columns = [siblings(rewards_BF[:, f], group_ids_B) for f in range(rewards_BF.shape[1])]
    terms_BF = mx.stack([signal(column, recipe) for column in columns], axis=1) * weights_F
    scored_B = mx.stack([column.valid_B for column in columns], axis=1).any(axis=1)
    total_B = terms_BF.sum(axis=1)
    cancels_B = mx.abs(total_B) <= EQUAL_REWARDS * mx.abs(terms_BF).sum(axis=1)
    x_B = mx.where(scored_B, mx.where(cancels_B, 0.0, total_B), mx.nan)
    batch = siblings(x_B, mx.zeros(x_B.shape))
    advantages_B = standard(batch.scores_B - batch.mean_B, batch.std(recipe.std), recipe.signal_eps)
    differ_BF = mx.stack([column.differ_B for column in columns], axis=1) & (weights_F != 0)
    differ_B = differ_BF.any(axis=1)
    return mx.where(batch.valid_B & differ_B, advantages_B, 0.0), differ_B


def process(steps: Steps, group_ids_B: mx.array, mask_BT: mx.array, recipe: Recipe) -> mx.array:
    """A_it = Σ of the normalised rewards of i's steps that end at or after token t. [B,T]

    `steps[i]` lists (index of the step's last token, score). r̃ = (r - mean)/(std + ε) over all
    step rewards of the group; tokens after the last step get 0. GRPO (arXiv:2402.03300, §4.1.3).
    """
    scored = _scored(steps, mask_BT)
    if not scored:
        return mx.zeros(mask_BT.shape)
    rows_S, ends_S = (
        mx.array([row for row, _, _ in scored]),
        mx.array([end for _, end, _ in scored]),
    )
    scores_S = mx.array([score for _, _, score in scored], dtype=mx.float32)
    normal_S = group_standard(siblings(scores_S, group_ids_B[rows_S]), recipe)
    is_of_row_BS = mx.arange(mask_BT.shape[0])[:, None] == rows_S[None, :]
    is_before_end_ST = ends_S[:, None] >= mx.arange(mask_BT.shape[1])[None, :]
    rewards_BS = mx.where(is_of_row_BS, normal_S[None, :], 0.0)
    return mx.where(mask_BT, rewards_BS @ is_before_end_ST.astype(mx.float32), 0.0)


def _scored(steps: Steps, mask_BT: mx.array) -> list[tuple[int, int, float]]:
    """(completion, last token, score) of every scored step; refuse a token outside the array."""
    rows, columns = mask_BT.shape
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


def overlong_penalty(lengths_B: mx.array, max_length: int, buffer_share: float) -> mx.array:
    """DAPO's soft length penalty (arXiv:2503.14476, eq. 13), added to the reward. [B]

    With buffer = share·L_max: 0 up to L_max - buffer, then (L_max - buffer - |o|)/buffer, never
    below -1. A share of 0 gives 0.
    """
    buffer = buffer_share * max_length
    if buffer == 0:
        return mx.zeros(lengths_B.shape)
    penalty_B = (max_length - buffer - lengths_B.astype(mx.float32)) / buffer
    return mx.clip(penalty_B, -1.0, 0.0)
