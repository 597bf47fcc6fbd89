"""The loss of one micro-batch, from the policy's scores and the recipe's terms."""

from collections.abc import Mapping
from typing import Any

import mlx.core as mx

from grpo_engine.config.recipes import Recipe
from grpo_engine.config.settings import RolloutConfig
from grpo_engine.frozen import frozen
from grpo_engine.maths.arrays import Batch, batch_of
from grpo_engine.maths.loss import recipe_loss
from grpo_engine.maths.metrics import metrics
from grpo_engine.maths.trust import Targets, targets_of
from grpo_engine.maths.weight import Totals
from grpo_engine.policy.batch import TokenBatch
from grpo_engine.policy.forward import TokenScores
from grpo_engine.run.backend import Reads
from grpo_engine.training.samples import Experience, rows_of_batch

Sums = dict[str, tuple[float, float]]  # (sum, count) of each metric


@frozen
class MicroBatchResult:
    """Loss, metrics and token arrays of one micro-batch, evaluated.

    The arrays are `logprobs` and `clipped`, and `entropy`, `kl` and `values` if there are any.
    """

    batch: TokenBatch
    loss: float
    sums: Sums
    arrays_BT: Mapping[str, mx.array]

    @classmethod
    def of(cls, batch: TokenBatch, outputs: Mapping[str, Any]) -> "MicroBatchResult":
        """The evaluated outputs of `loss`; scalars become plain numbers."""
        return cls(
            batch=batch,
            loss=float(outputs["loss"]),
            sums={name: (float(a), float(b)) for name, (a, b) in outputs["sums"].items()},
            arrays_BT=outputs["arrays_BT"],
        )


@frozen
class LossInputs:
    """Inputs of the losses of a pass, besides the policy and the denominators."""

    experience: Experience
    recipe: Recipe
    rollout: RolloutConfig
    targets: Targets | None
    is_first: bool  # the first pass measures entropy
    step: int
    scale: float = 1.0  # factor of the loss by which small gradients survive in float16


def reads_of(inputs: LossInputs) -> Reads:
    """What the losses of a pass read of the policy's forward."""
    recipe = inputs.recipe
    return Reads(
        temperature=inputs.rollout.temperature,
        entropy=reads_entropy(recipe) or inputs.is_first,
        entropy_gradient=recipe.entropy_bonus > 0 or recipe.reads("entropy_BT"),
        values=recipe.has_critic,
    )


def loss(
    new: TokenScores, inputs: LossInputs, totals: Totals, batch: TokenBatch
) -> tuple[mx.array, dict[str, Any]]:
    """The micro-batch's share of the update's loss, scaled; beside it, its outputs, all lazy."""
    recipe, targets = inputs.recipe, inputs.targets
    if targets is not None:
        targets = Targets(*(rows_of_batch(array_BT, batch) for array_BT in targets))
    value, terms = recipe_loss(
        _inputs_of_batch(inputs, batch, new), recipe, totals, targets, inputs.rollout.max_new_tokens
    )
    clipped_BT = (terms.side != 0) & (terms.advantage != 0) & terms.mask
    arrays_BT = {
        "logprobs": new.logprobs,
        "entropy": new.entropy,
        "values": new.values,
        "kl": terms.kl,
        "clipped": clipped_BT.astype(mx.float32),
    }
    return value * inputs.scale, {
        "loss": value,
        "sums": metrics(terms, recipe),
        "arrays_BT": {name: array for name, array in arrays_BT.items() if array is not None},
    }


def reads_entropy(recipe: Recipe) -> bool:
    shares = recipe.entropy_bonus > 0 or recipe.entropy_top_quantile < 1
    return shares or recipe.reads("entropy_BT")


def _inputs_of_batch(inputs: LossInputs, batch: TokenBatch, new: TokenScores) -> Batch:
    """The rows of a micro-batch, with the policy's scores of this pass."""
    experience, recipe = inputs.experience, inputs.recipe
    samples, old, advantages = experience.samples, experience.old, experience.advantages
    reads_sampler = recipe.reads_sampler or recipe.reads("sampler_logprobs_BT")
    data = {name: [column[row] for row in batch.rows] for name, column in samples.data.items()}

    def rows(array_BT: mx.array | None) -> mx.array | None:
        return None if array_BT is None else rows_of_batch(array_BT, batch)

    return batch_of(
        new.logprobs,
        rows(old.logprobs_BT),
        rows_of_batch(advantages.values, batch),
        rows_of_batch(samples.mask_BT, batch),
        ref=rows(old.reference_logprobs_BT),
        entropy=new.entropy,
        sampler=rows(samples.sampler_logprobs_BT) if reads_sampler else None,
        values=new.values,
        old_values=rows(old.values_BT),
        returns=rows(advantages.returns),
        extra={"step": inputs.step, **data},
    )


def step_targets(experience: Experience, recipe: Recipe) -> Targets | None:
    """Targets from whole groups, computed once, because a micro-batch may hold a slice of one."""
    if not recipe.has_targets:
        return None
    samples, old = experience.samples, experience.old
    assert old.logprobs_BT is not None
    return targets_of(
        old.logprobs_BT,
        experience.advantages.values,
        samples.mask_BT > 0,
        samples.token_ids_BT,
        samples.group_ids_B,
    )
