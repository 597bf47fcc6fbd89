"""The advantages of a step's rollouts, and which of them have a gradient."""

from collections.abc import Sequence

import numpy as np

from grpo_engine.config import recipes
from grpo_engine.config.recipes import RECIPES, Recipe
from grpo_engine.maths.advantage import Advantages, advantages
from grpo_engine.train.samples import SampledGroup, Samples


def advantages_read_tokens(recipe: Recipe) -> bool:
    """Whether advantages are made from log-probabilities or values of the tokens."""
    return recipe.signal == "gae" or recipe.pays_in_reward


def needs_old_logprobs(recipe: Recipe) -> bool:
    """Whether old_logprobs_BT must be known before the first update.

    Else the first pass is the first forward over fresh completions, and gives them.
    """
    return (
        recipe.minibatches > 1
        or recipe.sampler_sync_every > 1
        or recipe.trust == "target"
        or recipe.entropy_top_quantile < 1
        or advantages_read_tokens(recipe)
    )


def step_advantages(samples: Samples, recipe: Recipe) -> Advantages:
    """Advantages of the step's rollouts."""
    return advantages(
        samples.rewards(),
        samples.group_ids_B,
        recipe,
        samples.reward_weights,
        mask=samples.mask_BT,
        old=samples.old_logprobs_BT,
        ref=samples.reference_logprobs_BT,
        values=samples.old_values_BT,
        steps=samples.step_scores() if recipe.signal == "process" else None,
    )


def pinned_advantages(groups: Sequence[SampledGroup], recipe: Recipe) -> list[float]:
    """Advantages that the rollouts of pinned prompts would have; shown, never trained on."""
    signal = recipe.signal if recipe.compares == "completions" else RECIPES["grpo"].signal
    shown = recipes.recipe("grpo", signal=signal, beta=0.0)
    rewards_BF = [list(row) for group in groups for row in group.scores.values]
    group_ids_B = [place for place, group in enumerate(groups) for _ in group.rollouts]
    advantages_B = advantages(rewards_BF, group_ids_B, shown, groups[0].scores.weights).values
    return [float(value) for value in np.array(advantages_B)]


def scalar_advantages(samples: Samples) -> list[float]:
    """One advantage per rollout; the mean over its tokens where each token has its own."""
    assert samples.advantages is not None
    values = np.array(samples.advantages.values)
    if values.ndim == 1:
        return [float(value) for value in values]
    mask_BT = np.array(samples.mask_BT)
    return [float(v) for v in (values * mask_BT).sum(axis=1) / np.maximum(mask_BT.sum(axis=1), 1)]


def rows_to_train(samples: Samples, recipe: Recipe, entropy_bonus: float) -> list[int]:
    """Rows whose forward pass can have a gradient.

    A group without signal has none only if nothing but the advantage makes one: no KL in the
    loss, no entropy bonus, no critic. The mean of micro-batches' means counts its batches.
    """
    assert samples.advantages is not None
    rows = list(range(len(samples.rollouts)))
    if (
        recipe.anchor != "none"
        or entropy_bonus > 0
        or recipe.entropy_target is not None
        or recipe.signal == "gae"
        or recipe.weight == "per_batch_token"
    ):
        return rows
    has_signal_B = np.array(samples.advantages.has_signal)
    return [row for row in rows if has_signal_B[row]]
