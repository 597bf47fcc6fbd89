"""Entry point of the signal: turns rewards into advantages for any recipe."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import mlx.core as mx
import numpy as np

from grpo_engine.config import recipes
from grpo_engine.config.custom import Custom
from grpo_engine.config.recipes import Recipe
from grpo_engine.errors import MathsError
from grpo_engine.events import total_reward
from grpo_engine.maths import critic, custom
from grpo_engine.maths.anchor import distance
from grpo_engine.maths.arrays import of_shape, on_mask
from grpo_engine.maths.signal import Steps, normalize_then_sum, process, siblings, signal

Rewards = mx.array | Sequence[Any]  # [B,F] or [B]; None where a function does not apply
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Advantages:
    """The advantage of each completion, and what it was computed from."""

    values: mx.array  # [B], or [B,T] for process and gae
    rewards: mx.array  # [B] weighted sum; NaN where no reward function applies
    penalty: mx.array  # [B] subtracted by an anchor in the reward
    group_mean: mx.array  # [B] of rewards - penalty
    group_std: mx.array  # [B] of the same
    differ: mx.array  # [B] rewards differ in the group, as the signal compares them
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

    Equal `group_ids` [B] make siblings; `weights` [F] default to 1. [B,T]: an anchor in the reward
    reads `mask`, `old`, `ref`, a teacher `mask`, `old`, `teacher`, gae `values`; process `steps`.
    """
    recipe, r_BF = recipes.recipe(recipe), as_rewards(rewards)
    ids = of_shape("group_ids", mx.array(np.array(group_ids)), r_BF.shape[:1])
    weights = [1.0] * r_BF.shape[1] if weights is None else weights
    w_F = of_shape("weights", mx.array(np.array(weights)), r_BF.shape[1:])
    r = total_rewards(rewards, weights)
    named = {"old_logprobs_BT": old, "ref_logprobs_BT": ref, **(extra or {})}
    penalty_BT = token_penalty(recipe, mask, old, ref, named)
    penalty = mx.zeros(r.shape) if penalty_BT is None else penalty_BT.sum(axis=1)
    group = siblings(r - penalty, ids)
    differ, returns = group.differ, None
    if recipe.combine == "normalize_then_sum":
        advantage, differ = normalize_then_sum(r_BF, w_F, ids, recipe)
    elif recipe.has_critic:
        advantage, returns = from_critic(recipe, r, penalty_BT, values, mask)
    elif isinstance(recipe.signal, Custom):
        advantage = custom.advantages(recipe.signal, group, r_BF, ids, mask, named)
    elif recipe.compares == "steps":
        inside = required(recipe, "mask", mask) > 0
        advantage = process(required(recipe, "steps", steps), ids, inside, recipe)
    else:
        advantage = signal(group, recipe)
    advantage = with_teacher(recipe, advantage, mask, old, teacher)
    return Advantages(
        values=advantage,
        rewards=r,
        penalty=penalty,
        group_mean=group.mean,
        differ=differ,
        group_std=group.std(recipe.std),
        returns=returns,
        has_signal=has_signal(advantage, ids),
    )


def has_signal(advantage: mx.array, group_ids: mx.array) -> mx.array:
    """Whether some completion of the group has a nonzero advantage. [B]"""
    nonzero = (advantage.reshape(advantage.shape[0], -1) != 0).any(axis=1)
    return ((group_ids[:, None] == group_ids[None, :]) & nonzero[None, :]).any(axis=1)


def as_rewards(rewards: Rewards) -> mx.array:
    """Rewards as float32 [B,F] with NaN for None; [B] means one function."""
    if not isinstance(rewards, mx.array):
        rewards = mx.array(np.array(rewards, dtype=np.float32))  # NumPy reads None as NaN
    if rewards.ndim == 1:
        rewards = rewards[:, None]
    if rewards.ndim != 2:
        raise MathsError(f"rewards must have shape (B, F), got {tuple(rewards.shape)}")
    return rewards.astype(mx.float32)


def total_rewards(rewards: Rewards, weights: mx.array | Sequence[float]) -> mx.array:
    """The total reward of each completion, NaN for None: summed in Python floats, then float32. [B]

    A list is summed without conversion, so that totals equal those in the events.
    """
    rows: Any = rewards.tolist() if hasattr(rewards, "tolist") else rewards
    weights_F: Any = weights.tolist() if hasattr(weights, "tolist") else weights
    totals = [total_reward(row if isinstance(row, Sequence) else [row], weights_F) for row in rows]
    return mx.array([math.nan if r is None else r for r in totals])


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


def on_tokens(recipe: Recipe, name: str, values: mx.array | None, inside: mx.array) -> mx.array:
    """An argument that the recipe reads, 0 off the mask. [B,T]"""
    return on_mask(of_shape(name, required(recipe, name, values), inside.shape), inside)


def token_penalty(
    recipe: Recipe,
    mask: mx.array | None,
    old: mx.array | None,
    ref: mx.array | None,
    extra: Mapping[str, Any],
) -> mx.array | None:
    """β·k(π_old, π_ref), [B,T] or [B,1], if the anchor is in the reward; else None."""
    if not recipe.anchor_in_reward:
        return None
    inside = required(recipe, "mask", mask) > 0
    sampled_by = on_tokens(recipe, "old", old, inside)
    reference = on_tokens(recipe, "ref", ref, inside)
    values = {**extra, "mask_BT": inside.astype(mx.float32), "logprobs_BT": sampled_by}
    penalty = distance(sampled_by, reference, recipe.anchor, recipe.anchor_level, values)
    return mx.stop_gradient(recipe.beta * penalty)


def with_teacher(
    recipe: Recipe,
    advantage: mx.array,
    mask: mx.array | None,
    old: mx.array | None,
    teacher: mx.array | None,
) -> mx.array:
    """A_it + w·(log π_teacher - log π_old) of each token, a constant. [B] or [B,T] -> [B,T]

    The mean of the difference estimates -KL(π_old, π_teacher): on-policy distillation by reverse
    KL, token by token (GKD, arXiv:2306.13649; MiniLLM, arXiv:2306.08543, without reward-to-go).
    """
    if recipe.teacher_weight == 0:
        return advantage
    inside = required(recipe, "mask", mask) > 0
    student = on_tokens(recipe, "old", old, inside)
    gap = mx.stop_gradient(on_tokens(recipe, "teacher", teacher, inside) - student)
    return advantage.reshape(gap.shape[0], -1) + recipe.teacher_weight * gap


def from_critic(
    recipe: Recipe,
    reward: mx.array,
    penalty: mx.array | None,
    values: mx.array | None,
    mask: mx.array | None,
) -> tuple[mx.array, mx.array]:
    """GAE of token rewards, whitened over the update if the recipe says so, and returns. [B,T]

    A completion without a reward gets A = 0 and returns equal to its values: it has no influence.
    """
    inside = required(recipe, "mask", mask) > 0
    values = mx.stop_gradient(on_tokens(recipe, "values", values, inside))
    scored = inside & ~mx.isnan(reward)[:, None]
    penalty = mx.zeros(inside.shape) if penalty is None else penalty
    per_token = critic.token_rewards(reward, penalty, scored)
    advantage, returns = critic.gae(per_token, values, scored, recipe.gamma, recipe.lam)
    advantage = critic.whiten(advantage, scored) if recipe.whiten else advantage
    return advantage, mx.where(scored, returns, values)


def reward_metrics(
    rewards: Rewards, computed: Advantages, names: Sequence[str]
) -> dict[str, tuple[float, float]]:
    """TRL's reward metrics as (sum, count); standard deviations over the batch as (std, 1).

    `reward`, `reward_std`, `frac_reward_zero_std`, `rewards/<name>/mean` and `/std`. Columns of one
    name, of tasks that weigh a function differently, apply to different completions.
    """
    columns = {"reward": computed.rewards}
    for f, name in enumerate(names):
        key, column = f"rewards/{name}", as_rewards(rewards)[:, f]
        before = columns.get(key, column)
        columns[key] = mx.where(mx.isnan(before), column, before)
    result: dict[str, tuple[float, float]] = {}
    for name, column in columns.items():
        batch = siblings(column, mx.zeros(column.shape))
        count = float(batch.valid.sum())
        mean, std = (
            ("reward", "reward_std") if name == "reward" else (f"{name}/mean", f"{name}/std")
        )
        result[mean] = (float(batch.score.sum()), count)
        result[std] = (float(batch.std("sample")[0]), float(count > 1))
    if as_rewards(rewards).shape[1]:
        flat = (~computed.differ).astype(mx.float32)
        result["frac_reward_zero_std"] = (float(flat.sum()), float(flat.size))
    return result
