"""Means and spreads over siblings: the statistics under every signal. B completions in all."""

from dataclasses import dataclass

import mlx.core as mx


@dataclass(frozen=True, slots=True)
class Siblings:
    """Scores [B] with, for each completion, who counts as its sibling [B,B]."""

    score: mx.array  # 0 where there is no score
    valid: mx.array  # has a score
    members: mx.array  # members[i,j]: j has a score and i is compared with it

    def in_batch(self) -> "Siblings":
        """The same scores with all of the batch as siblings."""
        everyone = mx.broadcast_to(self.valid[None, :], self.members.shape)
        return Siblings(self.score, self.valid, everyone)

    @property
    def count(self) -> mx.array:
        """How many siblings have a score. [B]"""
        return self.members.astype(mx.float32).sum(axis=1)

    @property
    def mean(self) -> mx.array:
        """Mean score of the siblings, 0 where there are none. [B]"""
        total = mx.where(self.members, self.score[None, :], 0.0).sum(axis=1)
        return total / mx.maximum(self.count, 1.0)

    @property
    def differ(self) -> mx.array:
        """max > min, tested on the scores: rounding in a mean cannot make a difference. [B]"""
        most = mx.where(self.members, self.score[None, :], -mx.inf).max(axis=1)
        least = mx.where(self.members, self.score[None, :], mx.inf).min(axis=1)
        return most > least

    def std(self, kind: str) -> mx.array:
        """√(Σ_j (r_j - mean)²/n), divided by n-1 for `sample`; 0 where no two differ. [B]

        Deviations are scaled by the largest, so that their squares neither overflow nor vanish.
        """
        deviation = mx.where(self.members, self.score[None, :] - self.mean[:, None], 0.0)
        scale = mx.abs(deviation).max(axis=1)
        unit = deviation / mx.where(scale > 0, scale, 1.0)[:, None]
        divisor = mx.maximum(self.count - (kind == "sample"), 1.0)
        return mx.where(self.differ, scale * mx.sqrt((unit * unit).sum(axis=1) / divisor), 0.0)


def of_group(score: mx.array, group_ids: mx.array) -> Siblings:
    """Compare each completion with those of its own group; NaN means no score."""
    valid = ~mx.isnan(score)
    same = group_ids[:, None] == group_ids[None, :]
    return Siblings(mx.where(valid, score, 0.0), valid, same & valid[None, :])
