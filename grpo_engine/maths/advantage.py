"""Entry point of the signal: turns rewards into advantages for any recipe."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import mlx.core as mx
import numpy as np

from grpo_engine.config import recipes
from grpo_engine.config.recipes import Recipe
from grpo_engine.errors import MathsError
from grpo_engine.events import total_reward
from grpo_engine.maths import critic
from grpo_engine.maths.anchor import reward_penalty
from grpo_engine.maths.arrays import of_shape, on_mask
from grpo_engine.maths.groups import of_group
from grpo_engine.maths.process import Steps, process
from grpo_engine.maths.signal import any_differs, normalize_then_sum, signal

Rewards = mx.array | Sequence[Any]  # [B,F] or [B]; None where a function does not apply
Given = TypeVar("Given")


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
    values: mx.array | None = None,
    steps: Steps | None = None,
) -> Advantages:
    """The advantages of rewards [B,F], which are None or NaN where a function does not apply.

    Equal `group_ids` [B] make siblings; `weights` [F] default to 1. `mask`, `old`, `ref` [B,T] are
    read by an anchor in the reward, `values` [B,T] by gae, `steps` by process.
    """
    recipe = recipes.recipe(recipe)
    r_BF, ids = as_rewards(rewards), as_array(group_ids)
    of_shape("group_ids", ids, r_BF.shape[:1])
    w_F = mx.ones(r_BF.shape[1:]) if weights is None else as_array(weights)
    of_shape("weights", w_F, r_BF.shape[1:])
    r = total_rewards(rewards, w_F if weights is None else weights)
    penalty = token_penalty(recipe, mask, old, ref)
    taken, returns = mx.zeros(r.shape) if penalty is None else penalty.sum(axis=1), None
    if recipe.signal == "gae":
        advantage, returns = from_critic(recipe, r, penalty, values, mask)
    elif recipe.signal == "process":
        inside = needed(recipe, "mask", mask) > 0
        advantage = process(needed(recipe, "steps", steps), ids, inside, recipe)
    elif recipe.combine == "normalize_then_sum":
        advantage = normalize_then_sum(r_BF, w_F, ids, recipe)
    else:
        advantage = signal(r - taken, ids, recipe)
    found = described(recipe, advantage, r, taken, ids, returns)
    if recipe.combine == "normalize_then_sum":
        return replace(found, differ=any_differs(r_BF, w_F, ids))
    return found


def as_array(values: mx.array | Sequence[float]) -> mx.array:
    """Convert a list to an array; return an array unchanged."""
    return values if isinstance(values, mx.array) else mx.array(list(values))


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


def needed(recipe: Recipe, name: str, given: Given | None) -> Given:
    """Return the argument, or raise MathsError if it is missing and the recipe reads it."""
    if given is None:
        choice = f"signal={recipe.signal}"
        if recipe.anchor != "none" and recipe.anchor_place == "reward":
            choice += f", anchor={recipe.anchor} in the reward"
        raise MathsError(f"recipe {recipe.name} ({choice}) reads {name}: give {name}")
    return given


def token_penalty(
    recipe: Recipe, mask: mx.array | None, old: mx.array | None, ref: mx.array | None
) -> mx.array | None:
    """β·k(π_old, π_ref), [B,T] or [B,1], if the anchor is in the reward; else None."""
    if recipe.anchor == "none" or recipe.anchor_place == "loss":
        return None
    inside = needed(recipe, "mask", mask) > 0
    sampled_by = on_mask(of_shape("old", needed(recipe, "old", old), inside.shape), inside)
    reference = on_mask(of_shape("ref", needed(recipe, "ref", ref), inside.shape), inside)
    return reward_penalty(sampled_by, reference, recipe.anchor, recipe.anchor_level, recipe.beta)


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
    inside = needed(recipe, "mask", mask) > 0
    predicted = of_shape("values", needed(recipe, "values", values), inside.shape)
    valued = mx.stop_gradient(on_mask(predicted, inside))
    scored = ~mx.isnan(reward)
    known = inside & scored[:, None]
    taken = mx.zeros(inside.shape) if penalty is None else penalty
    per_token = critic.token_rewards(reward, taken, known)
    advantage, returns = critic.gae(per_token, valued, known, recipe.gamma, recipe.lam)
    whitened = critic.whiten(advantage, known) if recipe.whiten else advantage
    return whitened, mx.where(known, returns, valued)


def described(
    recipe: Recipe, values: mx.array, reward: mx.array, taken: mx.array, ids: mx.array,
    returns: mx.array | None,
) -> Advantages:  # fmt: skip
    """Add the statistics of their groups to advantages."""
    own = of_group(reward - taken, ids)
    pushed = (values.reshape(values.shape[0], -1) != 0).any(axis=1)
    same = ids[:, None] == ids[None, :]
    return Advantages(
        values=values,
        rewards=reward,
        penalty=taken,
        group_mean=own.mean,
        group_std=own.std(recipe.std),
        differ=own.differ,
        has_signal=(same & pushed[None, :]).any(axis=1),
        returns=returns,
    )


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
    found: dict[str, tuple[float, float]] = {}
    for name, column in columns.items():
        batch = of_group(column, mx.zeros(column.shape))
        count = _number(batch.valid.sum())
        mean, std = (
            ("reward", "reward_std") if name == "reward" else (f"{name}/mean", f"{name}/std")
        )
        found[mean] = (_number(batch.score.sum()), count)
        found[std] = (_number(batch.std("sample")[0]), float(count > 1))
    flat = (~computed.differ).astype(mx.float32)
    found["frac_reward_zero_std"] = (_number(flat.sum()), float(flat.size))
    return found


def _number(value: mx.array) -> float:
    return float(np.array(value))
