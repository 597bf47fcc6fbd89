"""Mean and standard deviation over siblings, which every signal uses. B completions in all."""

from dataclasses import dataclass

import mlx.core as mx

from grpo_engine.events import EQUAL_REWARDS


@dataclass(frozen=True, slots=True)
class Siblings:
    """Scores [B], and which completions are siblings [B,B]."""

    score: mx.array  # 0 where there is no score
    valid: mx.array  # has a score
    members: mx.array  # members[i,j]: j has a score and i is compared with it

    def in_batch(self) -> "Siblings":
        """The same scores with the whole batch as siblings."""
        everyone = mx.broadcast_to(self.valid[None, :], self.members.shape)
        return Siblings(self.score, self.valid, everyone)

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
        most = mx.where(self.members, self.score[None, :], -mx.inf).max(axis=1)
        least = mx.where(self.members, self.score[None, :], mx.inf).min(axis=1)
        return most - least > EQUAL_REWARDS * mx.abs(most)

    def std(self, kind: str) -> mx.array:
        """√(Σ_j (r_j - mean)²/n), with n-1 for `sample`; 0 if all scores are equal. [B]

        Deviations are scaled by the largest, so that their squares neither overflow nor underflow.
        """
        deviation = mx.where(self.members, self.score[None, :] - self.mean[:, None], 0.0)
        scale = mx.abs(deviation).max(axis=1)
        unit = deviation / mx.where(scale > 0, scale, 1.0)[:, None]
        divisor = mx.maximum(self.count - (kind == "sample"), 1.0)
        return mx.where(self.differ, scale * mx.sqrt((unit * unit).sum(axis=1) / divisor), 0.0)


def of_group(score: mx.array, group_ids: mx.array) -> Siblings:
    """Make the completions of each group siblings; NaN means no score."""
    valid = ~mx.isnan(score)
    same = group_ids[:, None] == group_ids[None, :]
    return Siblings(mx.where(valid, score, 0.0), valid, same & valid[None, :])
