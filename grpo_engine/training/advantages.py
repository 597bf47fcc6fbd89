"""Advantages of a step's rollouts, and which rollouts have a gradient."""

from collections.abc import Sequence

import numpy as np

from grpo_engine.config import recipes
from grpo_engine.config.recipes import RECIPES, Recipe
from grpo_engine.maths.advantage import Advantages, advantages
from grpo_engine.training.samples import OldScores, SampledGroup, Samples

SCORED = {"old_logprobs_BT", "ref_logprobs_BT", "entropy_BT"}  # arguments that cost a forward


def advantages_read_tokens(recipe: Recipe) -> bool:
    """Whether advantages depend on log-probabilities or values of tokens."""
    signal = recipe.functions.get("signal")
    reads = signal is not None and signal.parameters.keys() & SCORED
    in_reward = recipe.has_critic or recipe.anchor_in_reward
    return in_reward or recipe.teacher_weight > 0 or bool(reads)


def needs_old_logprobs(recipe: Recipe) -> bool:
    """Whether old_logprobs_BT is needed before the first update.

    If not, they come from the first pass, which is the first forward over fresh completions.
    """
    return (
        recipe.minibatches > 1
        or recipe.sampler_sync_every > 1
        or recipe.has_targets
        or recipe.entropy_top_quantile < 1
        or advantages_read_tokens(recipe)
    )


def step_advantages(samples: Samples, old: OldScores, recipe: Recipe, step: int) -> Advantages:
    return advantages(
        samples.counted_rewards(),
        samples.group_ids_B,
        recipe,
        [weight for _, weight in samples.columns],
        mask=samples.mask_BT,
        old=old.logprobs_BT,
        ref=old.reference_logprobs_BT,
        values=old.values_BT,
        teacher=old.teacher_logprobs_BT,
        steps=samples.step_scores() if recipe.compares == "steps" else None,
        extra={
            "sampler_logprobs_BT": samples.sampler_logprobs_BT,
            "entropy_BT": old.entropy_BT,
            "step": step,
            **samples.data,
        },
    )


def pinned_advantages(groups: Sequence[SampledGroup], recipe: Recipe) -> list[float]:
    """Advantages of the rollouts of pinned prompts; displayed, never trained on."""
    is_shown = recipe.compares == "completions" and "signal" not in recipe.functions
    signal = recipe.signal if is_shown else RECIPES["grpo"].signal
    shown = recipes.recipe("grpo", signal=signal, beta=0.0)
    totals_B1 = [[total] for group in groups for total in group.totals]
    group_ids_B = [index for index, group in enumerate(groups) for _ in group.rollouts]
    advantages_B = advantages(totals_B1, group_ids_B, shown).values
    return list(map(float, np.array(advantages_B)))


def scalar_advantages(samples: Samples, advantages: Advantages) -> list[float]:
    """One advantage per rollout; the mean over its tokens if each token has its own."""
    advantages_Bt = np.array(advantages.values)
    if advantages_Bt.ndim == 2:
        mask_BT = np.array(samples.mask_BT)
        advantages_Bt = (advantages_Bt * mask_BT).sum(axis=1) / np.maximum(mask_BT.sum(axis=1), 1)
    return list(map(float, advantages_Bt))


def rows_to_train(
    samples: Samples, advantages: Advantages, recipe: Recipe, entropy_bonus: float
) -> list[int]:
    """Rows whose forward pass can have a gradient.

    A group without signal has none only if the gradient depends on the advantage alone: no KL in
    the loss, no entropy bonus, no critic, no objective of the user. A mean of micro-batch means
    needs every batch.
    """
    rows = list(range(len(samples.rollouts)))
    reads_advantage_alone = not (
        recipe.anchor != "none"
        or entropy_bonus > 0
        or recipe.entropy_target is not None
        or recipe.has_critic
        or recipe.weight == "per_batch_token"
        or "trust" in recipe.functions
    )
    if reads_advantage_alone:
        has_signal_B = np.array(advantages.has_signal)
        rows = [row for row in rows if has_signal_B[row]]
    return rows if any(samples.rollouts[row].length for row in rows) else []
