"""Entry point of the loss: computes its value and its terms for any recipe."""

from typing import Any

import mlx.core as mx

from grpo_engine.config import recipes
from grpo_engine.config.recipes import Recipe
from grpo_engine.errors import MathsError
from grpo_engine.maths import anchor, critic, ratio, trust
from grpo_engine.maths.around import entropy_floor
from grpo_engine.maths.arrays import FARTHEST, LIMIT, lengths
from grpo_engine.maths.batch import Batch, batch_of
from grpo_engine.maths.target import Targets, push_to_target, targets_of
from grpo_engine.maths.terms import Loss, Terms
from grpo_engine.maths.weight import Totals, totals_of, weights


def policy_loss(
    new: mx.array,
    old: mx.array | None,
    ref: mx.array | None,
    advantages: mx.array,
    mask: mx.array,
    recipe: str | Recipe,
    *,
    group_ids: mx.array | None,
    token_ids: mx.array | None = None,
    entropy: mx.array | None = None,
    values: mx.array | None = None,
    old_values: mx.array | None = None,
    returns: mx.array | None = None,
    max_length: int | None = None,
    totals: Totals | None = None,
    sampler: mx.array | None = None,
    targets: Targets | None = None,
) -> Loss:
    """L = Σ_it w_it·(-J_it + β·k_it + c_V·L^V_it) - c_H·mean(H), J: trust, k: anchor, w: weight.

    Log-probabilities, entropy and values are [B,T], advantages [B] or [B,T], mask 1 on completion
    tokens. `old=None`: first update after sampling. `totals`: denominators of the whole update,
    None if this batch is all of it. `targets`: from whole groups, if the batch has only slices.
    """
    recipe = recipes.recipe(recipe)
    batch = batch_of(
        new, old, advantages, mask, ref=ref, entropy=entropy, sampler=sampler,
        values=values, old_values=old_values, returns=returns,
    )  # fmt: skip
    if recipe.trust == "target" and targets is None:
        targets = _targets(batch, token_ids, group_ids)
    return recipe_loss(batch, recipe, totals or totals_of(batch.mask), targets, max_length)


def recipe_loss(
    batch: Batch, recipe: Recipe, totals: Totals, targets: Targets | None, max_length: int | None
) -> Loss:
    """The sum of contribution = w·([in loss]·(β·k - [top]·importance·J) + c_V·L^V) - bonus.

    bonus = c_H·H/updated tokens.
    """
    _refuse_missing(recipe, batch)
    log_r = ratio.log_ratios(batch.new - batch.old, batch.mask, recipe.ratio)
    r = mx.broadcast_to(ratio.ratios(log_r), batch.mask.shape)
    importance, kept = _importance(batch, recipe)
    push = _push(batch, recipe, r, importance, targets)
    in_loss = batch.mask & ((push.side == trust.FREE) | (not recipe.drop_at_bound))
    top = _top_entropy(batch, recipe, totals)
    distance, value = _distance(batch, recipe, r), _value_loss(batch, recipe)
    term = in_loss * (recipe.beta * distance - top * kept * _weighed(push, importance))
    term = term + recipe.value_coefficient * value
    bonus = _entropy_bonus(batch, recipe, top, totals)
    weight = weights(batch.mask, recipe.weight, totals, max_length)
    contribution = weight * term - bonus
    terms = Terms(
        **_of_batch(batch, recipe),
        **_of_push(batch, push, r),
        advantage=batch.advantage if targets is None else targets.sign * batch.mask,
        clamped=batch.mask & (mx.abs(log_r) > LIMIT),
        importance=importance,
        kept=kept,
        updated=in_loss & top & kept,
        weight=weight,
        contribution=contribution,
        anchor=distance * batch.mask,
        kl=_kl(batch, recipe, r),
        value_loss=value,
        bonus=bonus,
        target=None if targets is None else targets.probability,
    )
    return Loss(contribution.sum(), terms)


def _push(
    batch: Batch, recipe: Recipe, r: mx.array, importance: mx.array, targets: Targets | None
) -> trust.Push:
    """J and where it has stopped."""
    if targets is not None:
        return push_to_target(r, targets)
    if recipe.trust == "vespo":
        log_weight = ratio.answer_weight(batch.new - batch.old, importance, recipe)
        return trust.vespo(log_weight, batch.advantage, batch.new, recipe)
    return trust.push(recipe, r, batch.advantage, batch.new)


def _of_batch(batch: Batch, recipe: Recipe) -> dict[str, Any]:
    """The terms that do not depend on the push."""
    return {
        "mask": batch.mask, "log_ratio": batch.new - batch.old, "entropy": batch.entropy,
        "kl_to_old": anchor.k3(batch.old - batch.new),
        "per_row": batch.per_row and recipe.ratio.startswith("sequence_"),
    }  # fmt: skip


def _of_push(batch: Batch, push: trust.Push, r: mx.array) -> dict[str, Any]:
    """The terms of a push, [B, T]."""
    return {
        "ratio": r, "low": mx.broadcast_to(push.low, r.shape),
        "high": mx.broadcast_to(push.high, r.shape), "side": push.side * batch.mask,
        "objective": push.objective * batch.mask, "gate": _gate(batch, push),
    }  # fmt: skip


def _weighed(push: trust.Push, importance: mx.array) -> mx.array:
    """importance·J; a gate already contains the importance. [B,T]"""
    return push.objective * importance if push.gate is None else push.objective


def _gate(batch: Batch, push: trust.Push) -> mx.array | None:
    """VESPO's φ: one number per completion [B,1] if its advantage is, 1 for an empty one."""
    if push.gate is None or not batch.per_row:
        return push.gate
    mean = mx.where(batch.mask, push.gate, 0.0).sum(axis=1, keepdims=True) / lengths(batch.mask)
    return mx.where(batch.mask.any(axis=1, keepdims=True), mean, 1.0)


def _importance(batch: Batch, recipe: Recipe) -> tuple[mx.array, mx.array]:
    """The importance weight and whether the push is kept, both [B,T]; 1 without correction."""
    weight, kept = mx.ones(batch.mask.shape), batch.mask
    if recipe.importance_cap > 0 and batch.sampler is not None:
        weight = ratio.importance(batch.old - batch.sampler, batch.mask, recipe)
        if recipe.trust != "vespo":  # whose weight of the whole answer contains this one
            kept = kept & (weight > 0)
    if recipe.off_policy_mask > 0:
        sampled = batch.old if batch.sampler is None else batch.sampler
        near = ratio.near_sampler(
            batch.new, sampled, batch.advantage, batch.mask, recipe.off_policy_mask
        )
        kept = kept & near
    return weight, kept


def _distance(batch: Batch, recipe: Recipe, r: mx.array) -> mx.array:
    """k(π, π_ref), times the ratio if it is re-weighted; 0 without an anchor in the loss. [B,T]"""
    if recipe.anchor == "none" or recipe.anchor_place == "reward":
        return mx.zeros(batch.mask.shape)
    if batch.ref is None:
        raise MathsError(
            f"recipe {recipe.name} has beta={recipe.beta:g} on {recipe.anchor}: give ref"
        )
    far = anchor.distance(batch.new, batch.ref, recipe.anchor, recipe.anchor_level)
    return mx.broadcast_to(_reweighted(far, r, recipe), batch.mask.shape)


def _kl(batch: Batch, recipe: Recipe, r: mx.array) -> mx.array | None:
    """k3 of each token to the reference, times the ratio if the anchor is; None without one."""
    if batch.ref is None:
        return None
    return _reweighted(anchor.k3(batch.new - batch.ref), r, recipe)


def _reweighted(far: mx.array, r: mx.array, recipe: Recipe) -> mx.array:
    """r·k, at most e^60, if the recipe re-weights its anchor; unbiased for KL(π, π_ref).

    The samples are π_old's: E_old[r·k] = E_π[k]. (DeepSeek-V3.2, arXiv:2512.02556)
    """
    return mx.minimum(far * r, FARTHEST) if recipe.reweights_anchor else far


def _top_entropy(batch: Batch, recipe: Recipe, totals: Totals) -> mx.array:
    """1 on tokens in the top share by entropy, whose push is kept. [B,T]"""
    if recipe.entropy_top_quantile == 1:
        return batch.mask
    assert batch.entropy is not None
    floor = totals.entropy_floor
    if floor is None:
        floor = entropy_floor(batch.entropy, batch.mask, recipe.entropy_top_quantile)
    return batch.mask & (batch.entropy >= floor)


def _entropy_bonus(batch: Batch, recipe: Recipe, top: mx.array, totals: Totals) -> mx.array:
    """c_H·H_t/n with n the update's tokens that are pushed: sums to c_H·mean(H). [B,T]"""
    if batch.entropy is None:
        return mx.zeros(batch.mask.shape)
    if recipe.entropy_top_quantile == 1:
        count = totals.tokens
    elif totals.updated_tokens is not None:
        count = totals.updated_tokens
    else:
        count = top.astype(mx.float32).sum() * totals.micro_batches
    return recipe.entropy_bonus * top * batch.entropy / mx.maximum(count, 1.0)


def _value_loss(batch: Batch, recipe: Recipe) -> mx.array:
    """The critic's loss if signal=gae trains a critic, else 0. [B,T]"""
    values, old_values, returns = batch.values, batch.old_values, batch.returns
    if recipe.signal != "gae" or values is None or old_values is None or returns is None:
        return mx.zeros(batch.mask.shape)
    return critic.value_loss(values, old_values, returns, recipe.value_clip)


def _targets(batch: Batch, token_ids: mx.array | None, group_ids: mx.array | None) -> Targets:
    """The targets of this batch, which must consist of whole groups."""
    if token_ids is None or group_ids is None:
        raise MathsError(
            "trust=target finds shared prefixes: give token_ids and group_ids of whole groups, "
            "or targets"
        )
    return targets_of(batch.old, batch.advantage, batch.mask, token_ids, group_ids)


def _refuse_missing(recipe: Recipe, batch: Batch) -> None:
    """Raise MathsError if an array that the recipe reads is missing."""
    if recipe.entropy_bonus > 0 and batch.entropy is None:
        raise MathsError(f"entropy_bonus={recipe.entropy_bonus:g} reads the entropy: give entropy")
    if recipe.entropy_top_quantile < 1 and batch.entropy is None:
        share = f"{recipe.entropy_top_quantile:g}"
        raise MathsError(f"entropy_top_quantile={share} reads the entropy: give entropy")
    if recipe.importance_cap > 0 and batch.sampler is None:
        raise MathsError(
            f"importance_cap={recipe.importance_cap:g} corrects for the sampler: give sampler, the "
            "log-probabilities that it sampled with"
        )
    given = [part is not None for part in (batch.values, batch.old_values, batch.returns)]
    if recipe.signal == "gae" and any(given) and not all(given):
        raise MathsError("the critic's loss needs values, old_values and returns: give all or none")
