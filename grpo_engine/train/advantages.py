"""What each answer is worth by the run's recipe, and whose forward pass can be left out."""

from collections.abc import Sequence

import numpy as np

from grpo_engine.config.recipes import RECIPES, Recipe, recipe
from grpo_engine.maths.advantage import Advantages, advantages
from grpo_engine.train.samples import SampledGroup, Samples


def reads_tokens(how: Recipe) -> bool:
    """Whether advantages are made from log-probabilities or values of the tokens."""
    return how.signal == "gae" or how.pays_in_reward


def reads_old_first(how: Recipe) -> bool:
    """Whether the old log-probabilities must be known before the first update.

    Else the first pass is the first forward over fresh answers, and gives them.
    """
    return (
        how.minibatches > 1
        or how.sampler_sync_every > 1
        or how.trust == "target"
        or how.entropy_top_quantile < 1
        or reads_tokens(how)
    )


def judge(samples: Samples, how: Recipe) -> Advantages:
    """Advantages of the step's answers."""
    return advantages(
        samples.rewards(),
        samples.group_ids,
        how,
        samples.weights,
        mask=samples.mask,
        old=samples.old,
        ref=samples.reference,
        values=samples.values,
        steps=samples.steps() if how.signal == "process" else None,
    )


def judge_alone(groups: Sequence[SampledGroup], how: Recipe) -> list[float]:
    """Advantages that followed answers would have, for people to look at; no gradient is made."""
    signal = how.signal if how.compares == "completions" else RECIPES["grpo"].signal
    plain = recipe("grpo", signal=signal, beta=0.0)
    rewards = [list(row) for group in groups for row in group.scores.values]
    owners = [place for place, group in enumerate(groups) for _ in group.rollouts]
    worth = advantages(rewards, owners, plain, groups[0].scores.weights)
    return [float(value) for value in np.array(worth.values)]


def rows_to_train(samples: Samples, how: Recipe, entropy_bonus: float) -> list[int]:
    """Rows whose forward pass can matter.

    A group without signal has no gradient only if nothing but the advantage makes one: no KL in the
    loss, no entropy bonus, no critic. The mean of micro-batches' means counts its batches.
    """
    assert samples.worth is not None
    every = list(range(len(samples.rollouts)))
    needs_all = (
        how.anchor != "none"
        or entropy_bonus > 0
        or how.entropy_target is not None
        or how.signal == "gae"
        or how.weight == "per_batch_token"
    )
    if needs_all:
        return every
    has_signal = np.array(samples.worth.has_signal)
    return [row for row in every if has_signal[row]]
