"""The loss of one micro-batch: the policy's forward, the recipe's terms, and the gradient."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_map

from grpo_engine.config.recipes import Recipe
from grpo_engine.maths.loss import policy_loss
from grpo_engine.maths.metrics import metrics
from grpo_engine.maths.target import Targets, targets_of
from grpo_engine.maths.terms import Terms
from grpo_engine.maths.weight import Totals
from grpo_engine.policy.batch import TokenBatch
from grpo_engine.policy.forward import token_scores
from grpo_engine.run.session import Run
from grpo_engine.train.samples import Samples, as_float, fitted, rows_of_batch

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


def gradient(
    run: Run,
    samples: Samples,
    recipe: Recipe,
    batch: TokenBatch,
    totals: Totals,
    targets: Targets | None,
) -> tuple[dict[str, Any], Any]:
    """The outputs of `loss` for one micro-batch and their float32 gradients, all lazy."""
    scale = run.optimizer.loss_scale

    def scaled_loss() -> tuple[mx.array, dict[str, Any]]:
        outputs = loss(run, samples, recipe, batch, totals, targets)
        return outputs["loss"] * scale, outputs

    (_, outputs), gradients = nn.value_and_grad(run.policy.module, scaled_loss)()
    gradients = tree_map(lambda g: g.astype(mx.float32), gradients)
    if scale != 1:
        gradients = tree_map(lambda g: g / scale, gradients)
    return outputs, gradients


def loss(
    run: Run,
    samples: Samples,
    recipe: Recipe,
    batch: TokenBatch,
    totals: Totals,
    targets: Targets | None,
) -> dict[str, Any]:
    """The micro-batch's share of the update's loss, its metrics and token arrays, all lazy."""
    assert samples.advantages is not None
    reads_entropy = recipe.entropy_bonus > 0 or recipe.entropy_top_quantile < 1
    new = token_scores(
        run.policy,
        batch,
        temperature=run.config.rollout.temperature,
        entropy=reads_entropy or not samples.passes,
        entropy_gradient=recipe.entropy_bonus > 0,
        values=run.has_critic,
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
        max_length=run.config.rollout.max_new_tokens,
        totals=totals,
        sampler=rows(samples.sampler_logprobs_BT) if recipe.reads_sampler else None,
        targets=_targets_of_batch(targets, batch),
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
