"""Entry point of the signal: turns rewards into advantages for any recipe."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import mlx.core as mx
import numpy as np

from grpo_engine.config import recipes
from grpo_engine.config.custom import Custom
from grpo_engine.config.recipes import Recipe
from grpo_engine.errors import MathsError
from grpo_engine.events import total_reward
from grpo_engine.frozen import frozen
from grpo_engine.maths import critic, custom
from grpo_engine.maths.anchor import distance
from grpo_engine.maths.arrays import of_shape, on_mask
from grpo_engine.maths.signal import Steps, normalize_then_sum, process, siblings, signal

Rewards = mx.array | Sequence[Any]  # [B,F] or [B]; None where a function does not apply
T = TypeVar("T")


@frozen
class Advantages:
    """The advantage of each completion, and the numbers behind it."""

    values: mx.array  # [B], or [B,T] for process and gae
    rewards: mx.array  # [B] weighted sum; NaN where no reward function applies
    penalty: mx.array  # [B] subtracted by an anchor in the reward
    group_mean: mx.array  # [B] of rewards - penalty
    group_std: mx.array  # [B] of rewards - penalty
    differ: mx.array  # [B] the group's rewards differ, as the signal compares them
    has_signal: mx.array  # [B] some completion of its group has a nonzero advantage
    returns: mx.array | None  # [B,T] the critic's targets


def advantages(
    rewards: Rewards,
    group_ids: mx.array | Sequence[int],
    recipe: str | Recipe,
    weights: mx.array | Sequence[float] | None = None,
    *,
    mask: mx.array | None = None,
    old: mx.array | None = None,
    ref: mx.array | None = None,
    teacher: mx.array | None = None,
    values: mx.array | None = None,
    steps: Steps | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Advantages:
    """The advantages of rewards [B,F], which are None or NaN where a function does not apply.

    Equal `group_ids` [B] make siblings; `weights` [F] default to 1. The other arrays are [B,T]: an
    anchor in the reward reads `mask`, `old` and `ref`, a teacher `mask`, `old` and `teacher`, gae
    `mask` and `values`, process `mask`.
    """
    recipe, rewards_BF = recipes.recipe(recipe), as_rewards(rewards)
    group_ids_B = of_shape("group_ids", mx.array(np.array(group_ids)), rewards_BF.shape[:1])
    weights = [1.0] * rewards_BF.shape[1] if weights is None else weights
    weights_F = of_shape("weights", mx.array(np.array(weights)), rewards_BF.shape[1:])
    rewards_B = total_rewards(rewards, weights)
    named = {"old_logprobs_BT": old, "ref_logprobs_BT": ref, **(extra or {})}
    penalty_BT = token_penalty(recipe, mask, old, ref, named)
    penalty_B = mx.zeros(rewards_B.shape) if penalty_BT is None else penalty_BT.sum(axis=1)
    group = siblings(rewards_B - penalty_B, group_ids_B)
    differ_B, returns_BT = group.differ_B, None
    if recipe.combine == "normalize_then_sum":
        advantages_Bt, differ_B = normalize_then_sum(rewards_BF, weights_F, group_ids_B, recipe)
    elif recipe.has_critic:
        advantages_Bt, returns_BT = from_critic(recipe, rewards_B, penalty_BT, values, mask)
    elif isinstance(recipe.signal, Custom):
        advantages_Bt = custom.advantages(
            recipe.signal, group, rewards_BF, group_ids_B, mask, named
        )
    elif recipe.compares == "steps":
        mask_BT = required(recipe, "mask", mask) > 0
        advantages_Bt = process(required(recipe, "steps", steps), group_ids_B, mask_BT, recipe)
    else:
        advantages_Bt = signal(group, recipe)
    advantages_Bt = with_teacher(recipe, advantages_Bt, mask, old, teacher)
    return Advantages(
        values=advantages_Bt,
        rewards=rewards_B,
        penalty=penalty_B,
        group_mean=group.mean_B,
        differ=differ_B,
        group_std=group.std(recipe.std),
        returns=returns_BT,
        has_signal=has_signal(advantages_Bt, group_ids_B),
    )


def has_signal(advantages_Bt: mx.array, group_ids_B: mx.array) -> mx.array:
    """Whether some completion of the group has a nonzero advantage. [B]"""
    nonzero_B = (advantages_Bt.reshape(advantages_Bt.shape[0], -1) != 0).any(axis=1)
    return ((group_ids_B[:, None] == group_ids_B[None, :]) & nonzero_B[None, :]).any(axis=1)


def as_rewards(rewards_Bf: Rewards) -> mx.array:
    """Rewards as float32 [B,F] with NaN for None; [B] means one function."""
    if not isinstance(rewards_Bf, mx.array):
        rewards_Bf = mx.array(np.array(rewards_Bf, dtype=np.float32))  # NumPy reads None as NaN
    if rewards_Bf.ndim == 1:
        rewards_Bf = rewards_Bf[:, None]
    if rewards_Bf.ndim != 2:
        raise MathsError(f"rewards must have shape (B, F), got {tuple(rewards_Bf.shape)}")
    return rewards_Bf.astype(mx.float32)


def total_rewards(rewards_Bf: Rewards, weights_F: mx.array | Sequence[float]) -> mx.array:
    """The total reward of each completion, NaN for None: summed in Python floats, then float32. [B]

    A list is summed without conversion, so that totals equal those in the events.
    """
    rows: Any = rewards_Bf.tolist() if hasattr(rewards_Bf, "tolist") else rewards_Bf
    weights: Any = weights_F.tolist() if hasattr(weights_F, "tolist") else weights_F
    totals = [total_reward(row if isinstance(row, Sequence) else [row], weights) for row in rows]
    return mx.array([math.nan if total is None else total for total in totals])


def required(recipe: Recipe, name: str, value: T | None) -> T:
    """Return an argument that the recipe reads, or raise MathsError if it is missing."""
    if value is None:
        choice = f"signal={recipe.signal}"
        if recipe.anchor_in_reward:
            choice += f", anchor={recipe.anchor} in the reward"
        if recipe.teacher_weight:
            choice += f", teacher_weight={recipe.teacher_weight:g}"
        raise MathsError(f"recipe {recipe.name} ({choice}) reads {name}: give {name}")
    return value


def on_tokens(recipe: Recipe, name: str, values_BT: mx.array | None, mask_BT: mx.array) -> mx.array:
    """An argument that the recipe reads, 0 off the mask. [B,T]"""
    return on_mask(of_shape(name, required(recipe, name, values_BT), mask_BT.shape), mask_BT)


def token_penalty(
    recipe: Recipe,
    mask_BT: mx.array | None,
    old_BT: mx.array | None,
    ref_BT: mx.array | None,
    extra: Mapping[str, Any],
) -> mx.array | None:
    """β·k(π_old, π_ref), [B,T] or [B,1], if the anchor is in the reward; else None."""
    if not recipe.anchor_in_reward:
        return None
    mask_BT = required(recipe, "mask", mask_BT) > 0
    old_BT = on_tokens(recipe, "old", old_BT, mask_BT)
    ref_BT = on_tokens(recipe, "ref", ref_BT, mask_BT)
    values = {**extra, "mask_BT": mask_BT.astype(mx.float32), "logprobs_BT": old_BT}
    penalty_BT = distance(old_BT, ref_BT, recipe.anchor, recipe.anchor_level, values)
    return mx.stop_gradient(recipe.beta * penalty_BT)


def with_teacher(
    recipe: Recipe,
    advantages_Bt: mx.array,
    mask_BT: mx.array | None,
    old_BT: mx.array | None,
    teacher_BT: mx.array | None,
) -> mx.array:
    """A_it + w·(log π_teacher - log π_old) of each token, a constant. [B,T]

    The mean of the difference estimates -KL(π_old, π_teacher): on-policy distillation by reverse
    KL, token by token (GKD, arXiv:2306.13649; MiniLLM, arXiv:2306.08543, without reward-to-go).
    Without a teacher the advantages stay as they are.
    """
    if recipe.teacher_weight == 0:
        return advantages_Bt
    mask_BT = required(recipe, "mask", mask_BT) > 0
    old_BT = on_tokens(recipe, "old", old_BT, mask_BT)
    gap_BT = mx.stop_gradient(on_tokens(recipe, "teacher", teacher_BT, mask_BT) - old_BT)
    return advantages_Bt.reshape(gap_BT.shape[0], -1) + recipe.teacher_weight * gap_BT


def from_critic(
    recipe: Recipe,
    rewards_B: mx.array,
    penalty_BT: mx.array | None,
    values_BT: mx.array | None,
    mask_BT: mx.array | None,
) -> tuple[mx.array, mx.array]:
    """GAE of token rewards, whitened over the update if the recipe says so, and returns. [B,T]

    A completion without a reward gets A = 0 and returns equal to its values: it has no influence.
    """
    mask_BT = required(recipe, "mask", mask_BT) > 0
    values_BT = mx.stop_gradient(on_tokens(recipe, "values", values_BT, mask_BT))
    scored_BT = mask_BT & ~mx.isnan(rewards_B)[:, None]
    penalty_BT = mx.zeros(mask_BT.shape) if penalty_BT is None else penalty_BT
    rewards_BT = critic.token_rewards(rewards_B, penalty_BT, scored_BT)
    advantages_BT, returns_BT = critic.gae(
        rewards_BT, values_BT, scored_BT, recipe.gamma, recipe.lam
    )
    if recipe.whiten:
        advantages_BT = critic.whiten(advantages_BT, scored_BT)
    return advantages_BT, mx.where(scored_BT, returns_BT, values_BT)


def reward_metrics(
    rewards_Bf: Rewards, computed: Advantages, names: Sequence[str]
) -> dict[str, tuple[float, float]]:
    """TRL's reward metrics as (sum, count); standard deviations over the batch as (std, 1).

    `reward`, `reward_std`, `frac_reward_zero_std`, `rewards/<name>/mean` and `/std`. Columns of one
    name, of tasks that weigh a function differently, apply to different completions.
    """
    rewards_BF = as_rewards(rewards_Bf)
    columns = {f"rewards/{name}": mx.full(rewards_BF.shape[:1], mx.nan) for name in names}
    for f, name in enumerate(names):
        earlier_B = columns[f"rewards/{name}"]
        columns[f"rewards/{name}"] = mx.where(mx.isnan(earlier_B), rewards_BF[:, f], earlier_B)
    result = _mean_and_std("reward", "reward_std", computed.rewards)
    for name, rewards_B in columns.items():
        result |= _mean_and_std(f"{name}/mean", f"{name}/std", rewards_B)
    if rewards_BF.shape[1]:
        flat_B = (~computed.differ).astype(mx.float32)
        result["frac_reward_zero_std"] = (float(flat_B.sum()), float(flat_B.size))
    return result


def _mean_and_std(mean: str, std: str, rewards_B: mx.array) -> dict[str, tuple[float, float]]:
    """Both over the batch, by the names of their metrics."""
    batch = siblings(rewards_B, mx.zeros(rewards_B.shape))
    count = float(batch.valid_B.sum())
    return {
        mean: (float(batch.scores_B.sum()), count),
        std: (float(batch.std("sample")[0]), float(count > 1)),
    }
