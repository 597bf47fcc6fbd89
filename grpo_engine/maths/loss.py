"""Entry point of the loss: computes its value and its terms for any recipe."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import mlx.core as mx

from grpo_engine.config import recipes
from grpo_engine.config.recipes import Recipe
from grpo_engine.errors import MathsError
from grpo_engine.maths import anchor, critic, custom, ratio, trust
from grpo_engine.maths.arrays import LIMIT, MAX_RATIO, Batch, batch_of, lengths
from grpo_engine.maths.trust import Targets, targets_of
from grpo_engine.maths.weight import Totals, entropy_floor, totals_of, weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The parts of the loss per token, all [B,T] and lazy; `contribution` sums to the loss.

    contribution = weight·(β·anchor - [updated]·importance·objective + c_V·value_loss) - bonus
    """

    mask: mx.array  # token is in the completion
    advantage: mx.array  # for trust=target the sign of the token
    log_ratio: mx.array  # log π/π_old of the token
    ratio: mx.array  # the recipe's ratio: of the token, or of its completion
    low: mx.array  # ratio at which a push down stops
    high: mx.array  # ratio at which a push up stops
    side: mx.array  # -1 stopped at low, 1 at high, 2 at the ceiling δ, 0 free
    clamped: mx.array  # the log-ratio was beyond ±60
    objective: mx.array  # J, before any weight
    gate: mx.array | None  # VESPO's φ; [B,1] where it is one number per completion
    importance: mx.array  # correction for the sampler; for trust=vespo part of J
    on_policy: mx.array  # 0 where the importance or off-policy mask drops the push
    updated: mx.array  # 1 where the token's push is in the loss
    weight: mx.array  # the token's weight in the average
    contribution: mx.array  # what the token adds to the loss
    anchor: mx.array  # the distance that β multiplies, 0 without an anchor in the loss
    kl: mx.array | None  # k3 of the token to the reference, re-weighted like the anchor
    kl_to_old: mx.array  # k3 to the policy that sampled: (r - 1) - log r
    entropy: mx.array | None
    value_loss: mx.array  # 0 without a critic
    bonus: mx.array  # the entropy bonus of the token
    target: mx.array | None  # target probability
    per_row: bool  # ratio and advantage have one value per completion


class Loss(NamedTuple):
    """The value to minimise and its terms, as `mx.value_and_grad` expects them."""

    value: mx.array
    terms: Terms


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
    extra: Mapping[str, Any] | None = None,
) -> Loss:
    """L = Σ_it w_it·(-J_it + β·k_it + c_V·L^V_it) - c_H·mean(H), J: trust, k: anchor, w: weight.

    Log-probabilities, entropy and values are [B,T], advantages [B] or [B,T], mask 1 on completion
    tokens. `old=None`: first update after sampling. `totals`: denominators of the whole update,
    None if this batch is all of it. `targets`: from whole groups, if the batch has only slices.
    `extra`: what functions of the user may name beside these.
    """
    recipe = recipes.recipe(recipe)
    batch = batch_of(
        new,
        old,
        advantages,
        mask,
        ref=ref,
        entropy=entropy,
        sampler=sampler,
        values=values,
        old_values=old_values,
        returns=returns,
        extra=extra,
    )
    if recipe.has_targets and targets is None:
        if token_ids is None or group_ids is None:
            raise MathsError(
                "trust=target finds shared prefixes: give token_ids and group_ids of whole groups, "
                "or targets"
            )
        targets = targets_of(batch.old, batch.advantage, batch.mask, token_ids, group_ids)
    return recipe_loss(batch, recipe, totals or totals_of(batch.mask), targets, max_length)


def recipe_loss(
    batch: Batch, recipe: Recipe, totals: Totals, targets: Targets | None, max_length: int | None
) -> Loss:
    """The sum of contribution = w·(β·k - [top]·importance·J + c_V·L^V) - bonus.

    bonus = c_H·H/updated tokens.
    """
    _refuse_missing(recipe, batch)
    mask, log_ratio = batch.mask, batch.new - batch.old
    log_r = ratio.log_ratios(log_ratio, mask, recipe.ratio)
    r = mx.broadcast_to(ratio.ratios(log_r), mask.shape)
    importance, on_policy = _importance(batch, recipe)
    named = custom.token_values(batch, totals, max_length, log_r, r)
    objective = custom.by_token("trust", recipe, named, mask)
    if objective is None:
        push = trust.push(batch, recipe, r, importance, targets)
    else:
        push = trust.unbounded(objective)
    top = _top_entropy(batch, recipe, totals)
    distance, value = _distance(batch, recipe, r, named), _value_loss(batch, recipe)
    # a gate already contains the importance
    objective = push.objective if push.gate is not None else push.objective * importance
    term = mask * (recipe.beta * distance - top * on_policy * objective)
    term = term + recipe.value_coefficient * value
    bonus = _entropy_bonus(batch, recipe, top, totals)
    weight = custom.by_token("weight", recipe, named, mask)
    weight = weights(mask, recipe.weight, totals, max_length) if weight is None else weight
    contribution = mx.stop_gradient(weight) * term - bonus
    terms = Terms(
        mask=mask,
        log_ratio=log_ratio,
        ratio=r,
        clamped=mask & (mx.abs(log_r) > LIMIT),
        advantage=batch.advantage if targets is None else targets.sign * mask,
        low=mx.broadcast_to(push.low, r.shape),
        high=mx.broadcast_to(push.high, r.shape),
        side=push.side * mask,
        objective=push.objective * mask,
        gate=_gate(batch, push),
        importance=importance,
        on_policy=on_policy,
        updated=mask & top & on_policy,
        weight=weight,
        contribution=contribution,
        anchor=distance * mask,
        kl=_kl(batch, recipe, r),
        kl_to_old=anchor.k3(batch.old - batch.new),
        entropy=batch.entropy,
        value_loss=value,
        bonus=bonus,
        target=None if targets is None else targets.probability,
        per_row=batch.per_row and recipe.has_sequence_ratio,
    )
    return Loss(contribution.sum(), terms)


def _gate(batch: Batch, push: trust.Push) -> mx.array | None:
    """VESPO's φ: one number per completion [B,1] if its advantage is, 1 for an empty one."""
    if push.gate is None or not batch.per_row:
        return push.gate
    mean = mx.where(batch.mask, push.gate, 0.0).sum(axis=1, keepdims=True) / lengths(batch.mask)
    return mx.where(batch.mask.any(axis=1, keepdims=True), mean, 1.0)


def _importance(batch: Batch, recipe: Recipe) -> tuple[mx.array, mx.array]:
    """The importance weight and where the push is kept, both [B,T]; 1 without correction."""
    weight, on_policy = mx.ones(batch.mask.shape), batch.mask
    if recipe.importance_cap > 0 and batch.sampler is not None:
        weight = ratio.importance(batch.old - batch.sampler, batch.mask, recipe)
        if not recipe.trust_rule.weighs_completions:  # whose weight contains this one
            on_policy = on_policy & (weight > 0)
    if recipe.off_policy_mask > 0:
        sampled = batch.old if batch.sampler is None else batch.sampler
        on_policy = on_policy & ratio.near_sampler(
            batch.new, sampled, batch.advantage, batch.mask, recipe.off_policy_mask
        )
    return weight, on_policy


def _distance(batch: Batch, recipe: Recipe, r: mx.array, named: custom.Values) -> mx.array:
    """k(π, π_ref), times the ratio if it is re-weighted; 0 without an anchor in the loss. [B,T]"""
    if not recipe.anchor_in_loss:
        return mx.zeros(batch.mask.shape)
    assert batch.ref is not None
    distance = anchor.distance(batch.new, batch.ref, recipe.anchor, recipe.anchor_level, named)
    return mx.broadcast_to(_reweighted(distance, r, recipe), batch.mask.shape)


def _kl(batch: Batch, recipe: Recipe, r: mx.array) -> mx.array | None:
    """k3 of each token to the reference, times the ratio if the anchor is; None without one."""
    if batch.ref is None:
        return None
    return _reweighted(anchor.k3(batch.new - batch.ref), r, recipe)


def _reweighted(distance: mx.array, r: mx.array, recipe: Recipe) -> mx.array:
    """r·k, at most e^60, if the recipe re-weights its anchor; unbiased for KL(π, π_ref).

    The samples are π_old's: E_old[r·k] = E_π[k]. (DeepSeek-V3.2, arXiv:2512.02556)
    """
    return mx.minimum(distance * r, MAX_RATIO) if recipe.reweights_anchor else distance


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
    if not recipe.has_critic or values is None or old_values is None or returns is None:
        return mx.zeros(batch.mask.shape)
    return critic.value_loss(values, old_values, returns, recipe.value_clip)


def _refuse_missing(recipe: Recipe, batch: Batch) -> None:
    """Raise MathsError if an array that the recipe reads is missing."""
    readers = (
        ("beta", recipe.anchor_in_loss, "ref"),
        ("entropy_bonus", recipe.entropy_bonus > 0, "entropy"),
        ("entropy_top_quantile", recipe.entropy_top_quantile < 1, "entropy"),
        ("importance_cap", recipe.importance_cap > 0, "sampler"),
    )
    for setting, is_read, name in readers:
        if is_read and getattr(batch, name) is None:
            value = getattr(recipe, setting)
            raise MathsError(
                f"recipe {recipe.name} ({setting}={value:g}) reads {name}: give {name}"
            )
    missing = {array is None for array in (batch.values, batch.old_values, batch.returns)}
    if recipe.has_critic and len(missing) > 1:
        raise MathsError("the critic's loss needs values, old_values and returns: give all or none")
