"""The loss of one micro-batch: a forward of the policy, the recipe's terms, and their gradient."""

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
from grpo_engine.train.samples import Samples, as_float, fitted, part

Sums = dict[str, tuple[float, float]]


@dataclass(slots=True, kw_only=True)
class Seen:
    """What one micro-batch gave, evaluated."""

    batch: TokenBatch
    loss: float
    sums: Sums
    logprobs: mx.array
    entropy: mx.array | None
    clipped: mx.array
    kl: mx.array | None


def gradient(
    run: Run,
    samples: Samples,
    recipe: Recipe,
    batch: TokenBatch,
    totals: Totals,
    targets: Targets | None,
) -> tuple[dict[str, Any], Any]:
    """The loss of one micro-batch with what is kept of it, and its float32 gradients; all lazy."""
    scale = run.optimizer.loss_scale

    def loss_of() -> tuple[mx.array, dict[str, Any]]:
        value, found = loss(run, samples, recipe, batch, totals, targets)
        return value * scale, {"loss": value, **found}

    (_, found), gradients = nn.value_and_grad(run.policy.module, loss_of)()
    gradients = tree_map(lambda g: g.astype(mx.float32), gradients)
    if scale != 1:
        gradients = tree_map(lambda g: g / scale, gradients)
    return found, gradients


def loss(
    run: Run,
    samples: Samples,
    recipe: Recipe,
    batch: TokenBatch,
    totals: Totals,
    targets: Targets | None,
) -> tuple[mx.array, dict[str, Any]]:
    """The micro-batch's share of the update's loss, and what is kept of the forward; lazy."""
    assert samples.worth is not None
    reads_entropy = recipe.entropy_bonus > 0 or recipe.entropy_top_quantile < 1
    scores = token_scores(
        run.policy,
        batch,
        temperature=run.config.rollout.temperature,
        entropy=reads_entropy or not samples.passes,
        entropy_gradient=recipe.entropy_bonus > 0,
        values=run.has_critic,
    )

    def own(values: mx.array | None) -> mx.array | None:
        return None if values is None else part(values, batch)

    worth = samples.worth
    mask = part(samples.mask, batch)
    value, terms = policy_loss(
        scores.logprobs,
        own(samples.old),
        own(samples.reference),
        part(worth.values, batch),
        mask,
        recipe,
        group_ids=part(samples.group_ids, batch),
        token_ids=batch.ids,
        entropy=scores.entropy,
        values=scores.values,
        old_values=own(samples.values),
        returns=own(worth.returns),
        max_length=run.config.rollout.max_new_tokens,
        totals=totals,
        sampler=own(samples.sampler) if recipe.reads_sampler else None,
        targets=_own_targets(targets, batch),
    )
    return value, {
        "sums": metrics(terms, recipe),
        "logprobs": mx.stop_gradient(scores.logprobs),
        "entropy": None if scores.entropy is None else mx.stop_gradient(scores.entropy),
        "clipped": _clipped(terms),
        "kl": terms.kl,
    }


def _clipped(terms: Terms) -> mx.array:
    """1 where a bound stopped the push on a token."""
    return ((terms.side != 0) & (terms.advantage != 0) & (terms.mask > 0)).astype(mx.float32)


def _own_targets(targets: Targets | None, batch: TokenBatch) -> Targets | None:
    if targets is None:
        return None
    rows = targets.rows(mx.array(batch.rows))
    return Targets(*(fitted(values, batch.width) for values in rows))


def step_targets(samples: Samples, recipe: Recipe) -> Targets | None:
    """Targets of whole groups, made once: a micro-batch may hold a slice of one."""
    if recipe.trust != "target":
        return None
    assert samples.old is not None
    assert samples.worth is not None
    return targets_of(
        samples.old, samples.worth.values, samples.mask > 0, samples.token_ids, samples.group_ids
    )


def seen_of(batch: TokenBatch, found: Mapping[str, Any]) -> Seen:
    """What an evaluated micro-batch gave, in plain numbers where it has no axes."""
    return Seen(
        batch=batch,
        loss=as_float(found["loss"]),
        sums={
            name: (as_float(total), as_float(count))
            for name, (total, count) in found["sums"].items()
        },
        logprobs=found["logprobs"],
        entropy=found["entropy"],
        clipped=found["clipped"],
        kl=found["kl"],
    )
