"""The loss of one micro-batch: the policy's forward, the recipe's terms, and the gradient."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_map

from grpo_engine.config.recipes import Recipe
from grpo_engine.config.settings import RolloutConfig
from grpo_engine.maths.loss import policy_loss
from grpo_engine.maths.metrics import metrics
from grpo_engine.maths.target import Targets, targets_of
from grpo_engine.maths.terms import Terms
from grpo_engine.maths.weight import Totals
from grpo_engine.policy.batch import TokenBatch
from grpo_engine.policy.forward import token_scores
from grpo_engine.policy.policy import Policy
from grpo_engine.training.samples import Samples, as_float, fitted, rows_of_batch

Sums = dict[str, tuple[float, float]]  # (sum, count) of each metric


@dataclass(slots=True, kw_only=True)
class MicroBatchResult:
    """Loss, metrics and token arrays [B, T] of one micro-batch, evaluated."""

    batch: TokenBatch
    loss: float
    sums: Sums
    logprobs: mx.array
    entropy: mx.array | None
    clipped: mx.array
    kl: mx.array | None
    values: mx.array | None

    @classmethod
    def of(cls, batch: TokenBatch, outputs: Mapping[str, Any]) -> "MicroBatchResult":
        """The evaluated outputs of `gradient`; scalars become plain numbers."""
        sums = {
            name: (as_float(total), as_float(count))
            for name, (total, count) in outputs["sums"].items()
        }
        return cls(**{**outputs, "batch": batch, "loss": as_float(outputs["loss"]), "sums": sums})


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInputs:
    """What the loss of every micro-batch of an update reads, besides the policy."""

    samples: Samples
    recipe: Recipe
    totals: Totals
    targets: Targets | None
    rollout: RolloutConfig
    first: bool  # whether this is the first pass, which measures entropy
    scale: float = 1.0  # of the loss, so that small gradients survive in float16


def gradient(policy: Policy, inputs: LossInputs, batch: TokenBatch) -> tuple[dict[str, Any], Any]:
    """The outputs of `loss` for one micro-batch and their float32 gradients, all lazy."""
    scale = inputs.scale

    def scaled_loss() -> tuple[mx.array, dict[str, Any]]:
        outputs = loss(policy, inputs, batch)
        return outputs["loss"] * scale, outputs

    (_, outputs), gradients = nn.value_and_grad(policy.module, scaled_loss)()
    gradients = tree_map(lambda g: g.astype(mx.float32), gradients)
    if scale != 1:
        gradients = tree_map(lambda g: g / scale, gradients)
    return outputs, gradients


def loss(policy: Policy, inputs: LossInputs, batch: TokenBatch) -> dict[str, Any]:
    """The micro-batch's share of the update's loss, its metrics and token arrays, all lazy."""
    samples, recipe = inputs.samples, inputs.recipe
    assert samples.advantages is not None
    reads_entropy = recipe.entropy_bonus > 0 or recipe.entropy_top_quantile < 1
    new = token_scores(
        policy,
        batch,
        temperature=inputs.rollout.temperature,
        entropy=reads_entropy or inputs.first,
        entropy_gradient=recipe.entropy_bonus > 0,
        values=recipe.signal == "gae",
    )

    def rows(values: mx.array | None) -> mx.array | None:
        return None if values is None else rows_of_batch(values, batch)

    value, terms = policy_loss(
        new.logprobs,
        rows(samples.old_logprobs_BT),
        rows(samples.reference_logprobs_BT),
        rows_of_batch(samples.advantages.values, batch),
        rows_of_batch(samples.mask_BT, batch),
        recipe,
        group_ids=rows_of_batch(samples.group_ids_B, batch),
        token_ids=batch.ids,
        entropy=new.entropy,
        values=new.values,
        old_values=rows(samples.old_values_BT),
        returns=rows(samples.advantages.returns),
        max_length=inputs.rollout.max_new_tokens,
        totals=inputs.totals,
        sampler=rows(samples.sampler_logprobs_BT) if recipe.reads_sampler else None,
        targets=_targets_of_batch(inputs.targets, batch),
    )
    return {
        "loss": value,
        "sums": metrics(terms, recipe),
        "logprobs": mx.stop_gradient(new.logprobs),
        "entropy": None if new.entropy is None else mx.stop_gradient(new.entropy),
        "clipped": _clipped(terms),
        "kl": terms.kl,
        "values": None if new.values is None else mx.stop_gradient(new.values),
    }


def _clipped(terms: Terms) -> mx.array:
    """1 where a bound stopped the push of a token."""
    return ((terms.side != 0) & (terms.advantage != 0) & (terms.mask > 0)).astype(mx.float32)


def step_targets(samples: Samples, recipe: Recipe) -> Targets | None:
    """Targets from whole groups, computed once, because a micro-batch may hold a slice of one."""
    if recipe.trust != "target":
        return None
    assert samples.old_logprobs_BT is not None
    assert samples.advantages is not None
    return targets_of(
        samples.old_logprobs_BT,
        samples.advantages.values,
        samples.mask_BT > 0,
        samples.token_ids_BT,
        samples.group_ids_B,
    )


def _targets_of_batch(targets: Targets | None, batch: TokenBatch) -> Targets | None:
    if targets is None:
        return None
    rows = targets.rows(mx.array(batch.rows))
    return Targets(*(fitted(values, batch.width) for values in rows))
