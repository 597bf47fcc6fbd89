"""Choice 1, signal: a completion's advantage, from its reward and those of its siblings.

From rewards r [B] and siblings; every signal is [B], 0 where there is no reward.
"""

from collections.abc import Callable

import mlx.core as mx

from grpo_engine.config.recipes import Recipe
from grpo_engine.events import EQUAL_REWARDS
from grpo_engine.maths.groups import Siblings, of_group


def plain(own: Siblings, _recipe: Recipe) -> mx.array:
    """A_i = r_i: REINFORCE (Williams, 1992)."""
    return own.score


def minus_batch_mean(own: Siblings, _recipe: Recipe) -> mx.array:
    """A_i = r_i - mean(r) over the batch: REINFORCE with a baseline."""
    return own.score - own.in_batch().mean


def group_mean(own: Siblings, _recipe: Recipe) -> mx.array:
    """A_i = r_i - mean(r of the group): Dr. GRPO (arXiv:2503.20783)."""
    return mx.where(own.differ, own.score - own.mean, 0.0)


def standard(deviation: mx.array, std: mx.array, eps: float) -> mx.array:
    """(r - mean)/(std + ε), a literal 0 if all rewards are equal. [B]"""
    return mx.where(std > 0, deviation / (std + eps), 0.0)


def group_standard(own: Siblings, recipe: Recipe) -> mx.array:
    """A_i = (r_i - mean)/(std + ε) over the group: GRPO (arXiv:2402.03300, eq. 3)."""
    return standard(own.score - own.mean, own.std(recipe.std), recipe.signal_eps)


def batch_standard(own: Siblings, recipe: Recipe) -> mx.array:
    """A_i = (r_i - mean of the group)/(std of the batch's raw rewards + ε).

    TRL's scale_rewards="batch" (arXiv:2508.08221): an easy group counts less than a hard one.
    """
    return standard(group_mean(own, recipe), own.in_batch().std(recipe.std), recipe.signal_eps)


def leave_one_out(own: Siblings, recipe: Recipe) -> mx.array:
    """A_i = r_i - mean of the others = (r_i - mean)·n/(n-1): RLOO (arXiv:2402.14740)."""
    return group_mean(own, recipe) * own.count / mx.maximum(own.count - 1, 1.0)


def group_sign(own: Siblings, recipe: Recipe) -> mx.array:
    """A_i = sign(r_i - mean), 0 if |r_i - mean| ≤ 0.1·std of the group."""
    above = group_mean(own, recipe)
    return mx.where(mx.abs(above) > 0.1 * own.std(recipe.std), mx.sign(above), 0.0)


SIGNALS: dict[str, Callable[[Siblings, Recipe], mx.array]] = {
    "return": plain,
    "minus_batch_mean": minus_batch_mean,
    "group_mean": group_mean,
    "group_standard": group_standard,
    "leave_one_out": leave_one_out,
    "batch_standard": batch_standard,
    "group_sign": group_sign,
}


def signal(score: mx.array, group_ids: mx.array, recipe: Recipe) -> mx.array:
    """The recipe's signal of scores [B]; a completion without a score (NaN) gets 0."""
    own = of_group(score, group_ids)
    return mx.where(own.valid, SIGNALS[recipe.signal](own, recipe), 0.0)


def any_differs(rewards: mx.array, weights: mx.array, group_ids: mx.array) -> mx.array:
    """Whether some function that counts scores the completions of the group differently. [B]"""
    columns = [rewards[:, f] for f in range(rewards.shape[1])]
    differ = mx.stack([of_group(column, group_ids).differ for column in columns], axis=1)
    return (differ & (weights != 0)).any(axis=1)


def normalize_then_sum(
    rewards: mx.array, weights: mx.array, group_ids: mx.array, recipe: Recipe
) -> mx.array:
    """A = (x - mean(x))/(std(x) + ε) over the batch, x_i = Σ_f w_f·signal(r_f)_i. [B,F] -> [B]

    TRL's name for it (GDPO, arXiv:2601.05242): every function counts by its weight, whatever its
    scale. A group in which every function gives equal scores gets a literal 0.
    """
    columns = [rewards[:, f] for f in range(rewards.shape[1])]
    parts = mx.stack([signal(column, group_ids, recipe) for column in columns], axis=1)
    scored = (~mx.isnan(rewards)).any(axis=1)
    terms = parts * weights
    cancels = mx.abs(terms.sum(axis=1)) <= EQUAL_REWARDS * mx.abs(terms).sum(axis=1)
    x = mx.where(scored, mx.where(cancels, 0.0, terms.sum(axis=1)), mx.nan)
    batch = of_group(x, group_ids).in_batch()
    advantages = standard(batch.score - batch.mean, batch.std(recipe.std), recipe.signal_eps)
    differ = any_differs(rewards, weights, group_ids)
    return mx.where(batch.valid & differ, advantages, 0.0)
