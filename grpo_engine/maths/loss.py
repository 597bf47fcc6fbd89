"""Entry point of the loss: computes its value and its terms for any recipe."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import mlx.core as mx

from grpo_engine.config import recipes
from grpo_engine.config.recipes import Recipe
from grpo_engine.errors import MathsError
from grpo_engine.frozen import frozen
from grpo_engine.maths import anchor, critic, custom, ratio, trust
from grpo_engine.maths.arrays import LIMIT, MAX_RATIO, Batch, batch_of, lengths
from grpo_engine.maths.trust import Targets, targets_of
from grpo_engine.maths.weight import Totals, entropy_floor, totals_of, weights


@frozen
class Terms:
    """The parts of the loss per token, all [B,T] and lazy; `contribution` sums to the loss.

    contribution = weight·(β·anchor - [updated]·importance·objective + c_V·value_loss) - bonus
    """

    mask: mx.array  # 1 on tokens of the completion
    advantage: mx.array  # for trust=target the sign of the token
    log_ratio: mx.array  # log π/π_old of the token
    ratio: mx.array  # the recipe's ratio: of the token, or of its completion
    low: mx.array  # ratio at which a push down stops
    high: mx.array  # ratio at which a push up stops
    side: mx.array  # -1 stopped at low, 1 at high, 2 at the ceiling δ, 0 free
    clamped: mx.array  # the log-ratio was beyond ±60
    objective: mx.array  # J, unweighted
    gate: mx.array | None  # VESPO's φ; [B,1] where it is one number per completion
    importance: mx.array  # weight that corrects for the sampler; for trust=vespo a factor of J
    on_policy: mx.array  # 0 where the importance or off-policy mask drops the push
    updated: mx.array  # 1 where the token's push is in the loss
    weight: mx.array  # w, the token's weight in the average
    contribution: mx.array  # the token's part of the loss
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
    `extra`: further values that functions of the user may name.
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
        targets = targets_of(batch.old_BT, batch.advantages_BT, batch.mask_BT, token_ids, group_ids)
    return recipe_loss(batch, recipe, totals or totals_of(batch.mask_BT), targets, max_length)


def recipe_loss(
    batch: Batch, recipe: Recipe, totals: Totals, targets: Targets | None, max_length: int | None
) -> Loss:
    """The sum of contribution = w·(β·k - [top]·importance·J + c_V·L^V) - bonus."""
    _refuse_missing(recipe, batch)
    mask_BT, log_ratio_BT = batch.mask_BT, batch.new_BT - batch.old_BT
    log_r_BT = ratio.log_ratios(log_ratio_BT, mask_BT, recipe.ratio)
    r_BT = mx.broadcast_to(ratio.ratios(log_r_BT), mask_BT.shape)
    importance_BT, on_policy_BT = _importance(batch, recipe)
    named = custom.token_values(batch, totals, max_length, log_r_BT, r_BT)
    objective_BT = custom.by_token("trust", recipe, named, mask_BT)
    if objective_BT is None:
        push = trust.push(batch, recipe, r_BT, importance_BT, targets)
    else:
        push = trust.unbounded(objective_BT)
    top_BT = _top_entropy(batch, recipe, totals)
    anchor_BT, value_loss_BT = _anchor(batch, recipe, r_BT, named), _value_loss(batch, recipe)
    objective_BT = push.objective_BT
    if push.gate_BT is None:  # a gate contains the importance
        objective_BT = objective_BT * importance_BT
    term_BT = mask_BT * (recipe.beta * anchor_BT - top_BT * on_policy_BT * objective_BT)
    term_BT = term_BT + recipe.value_coefficient * value_loss_BT
    bonus_BT = _entropy_bonus(batch, recipe, top_BT, totals)
    weight_BT = custom.by_token("weight", recipe, named, mask_BT)
    if weight_BT is None:
        weight_BT = weights(mask_BT, recipe.weight, totals, max_length)
    contribution_BT = mx.stop_gradient(weight_BT) * term_BT - bonus_BT
    terms = Terms(
        mask=mask_BT,
        log_ratio=log_ratio_BT,
        ratio=r_BT,
        clamped=mask_BT & (mx.abs(log_r_BT) > LIMIT),
        advantage=batch.advantages_BT if targets is None else targets.sign_BT * mask_BT,
        low=mx.broadcast_to(push.low_BT, r_BT.shape),
        high=mx.broadcast_to(push.high_BT, r_BT.shape),
        side=push.side_BT * mask_BT,
        objective=push.objective_BT * mask_BT,
        gate=_gate(batch, push),
        importance=importance_BT,
        on_policy=on_policy_BT,
        updated=mask_BT & top_BT & on_policy_BT,
        weight=weight_BT,
        contribution=contribution_BT,
        anchor=anchor_BT * mask_BT,
        kl=_kl(batch, recipe, r_BT),
        kl_to_old=anchor.k3(batch.old_BT - batch.new_BT),
        entropy=batch.entropy_BT,
        value_loss=value_loss_BT,
        bonus=bonus_BT,
        target=None if targets is None else targets.probability_BT,
        per_row=batch.per_row and recipe.has_sequence_ratio,
    )
    return Loss(contribution_BT.sum(), terms)


def _gate(batch: Batch, push: trust.Push) -> mx.array | None:
    """VESPO's φ: one number per completion [B,1] if its advantage is, 1 for an empty one."""
    gate_BT, mask_BT = push.gate_BT, batch.mask_BT
    if gate_BT is None or not batch.per_row:
        return gate_BT
    mean_B1 = mx.where(mask_BT, gate_BT, 0.0).sum(axis=1, keepdims=True) / lengths(mask_BT)
    return mx.where(mask_BT.any(axis=1, keepdims=True), mean_B1, 1.0)


def _importance(batch: Batch, recipe: Recipe) -> tuple[mx.array, mx.array]:
    """The importance weight and where the push is kept, both [B,T]; 1 without correction."""
    weight_BT, on_policy_BT = mx.ones(batch.mask_BT.shape), batch.mask_BT
    if recipe.importance_cap > 0 and batch.sampler_BT is not None:
        weight_BT = ratio.importance(batch.old_BT - batch.sampler_BT, batch.mask_BT, recipe)
        if not recipe.trust_rule.weighs_completions:  # such a rule contains the weight
            on_policy_BT = on_policy_BT & (weight_BT > 0)
    if recipe.off_policy_mask > 0:
        sampler_BT = batch.old_BT if batch.sampler_BT is None else batch.sampler_BT
        on_policy_BT = on_policy_BT & ratio.near_sampler(
            batch.new_BT, sampler_BT, batch.advantages_BT, batch.mask_BT, recipe.off_policy_mask
        )
    return weight_BT, on_policy_BT


def _anchor(batch: Batch, recipe: Recipe, r_BT: mx.array, named: custom.Values) -> mx.array:
    """k(π, π_ref), times the ratio if it is re-weighted; 0 without an anchor in the loss. [B,T]"""
    if not recipe.anchor_in_loss:
        return mx.zeros(batch.mask_BT.shape)
    assert batch.ref_BT is not None
    distance_BT = anchor.distance(
        batch.new_BT, batch.ref_BT, recipe.anchor, recipe.anchor_level, named
    )
    return mx.broadcast_to(_reweighted(distance_BT, r_BT, recipe), batch.mask_BT.shape)


def _kl(batch: Batch, recipe: Recipe, r_BT: mx.array) -> mx.array | None:
    """k3 of each token to the reference, times the ratio if the anchor is; None without one."""
    if batch.ref_BT is None:
        return None
    return _reweighted(anchor.k3(batch.new_BT - batch.ref_BT), r_BT, recipe)


def _reweighted(distance_BT: mx.array, r_BT: mx.array, recipe: Recipe) -> mx.array:
    """r·k, at most e^60, if the recipe re-weights its anchor; unbiased for KL(π, π_ref).

    The samples are π_old's: E_old[r·k] = E_π[k]. (DeepSeek-V3.2, arXiv:2512.02556)
    """
    return mx.minimum(distance_BT * r_BT, MAX_RATIO) if recipe.reweights_anchor else distance_BT


def _top_entropy(batch: Batch, recipe: Recipe, totals: Totals) -> mx.array:
    """1 on tokens in the top share by entropy, whose push is kept. [B,T]"""
    if recipe.entropy_top_quantile == 1:
        return batch.mask_BT
    assert batch.entropy_BT is not None
    floor = totals.entropy_floor
    if floor is None:
        floor = entropy_floor(batch.entropy_BT, batch.mask_BT, recipe.entropy_top_quantile)
    return batch.mask_BT & (batch.entropy_BT >= floor)


def _entropy_bonus(batch: Batch, recipe: Recipe, top_BT: mx.array, totals: Totals) -> mx.array:
    """c_H·H_t/n with n the update's tokens that are pushed: sums to c_H·mean(H). [B,T]"""
    if batch.entropy_BT is None:
        return mx.zeros(batch.mask_BT.shape)
    if recipe.entropy_top_quantile == 1:
        count = totals.tokens
    elif totals.updated_tokens is not None:
        count = totals.updated_tokens
    else:
        count = top_BT.astype(mx.float32).sum() * totals.micro_batches
    return recipe.entropy_bonus * top_BT * batch.entropy_BT / mx.maximum(count, 1.0)


def _value_loss(batch: Batch, recipe: Recipe) -> mx.array:
    """The critic's loss if signal=gae trains a critic, else 0. [B,T]"""
    values_BT, old_values_BT, returns_BT = batch.values_BT, batch.old_values_BT, batch.returns_BT
    if values_BT is None or old_values_BT is None or returns_BT is None or not recipe.has_critic:
        return mx.zeros(batch.mask_BT.shape)
    return critic.value_loss(values_BT, old_values_BT, returns_BT, recipe.value_clip)


def _refuse_missing(recipe: Recipe, batch: Batch) -> None:
    """Raise MathsError if an array that the recipe reads is missing."""
    readers = (
        ("beta", recipe.anchor_in_loss, "ref"),
        ("entropy_bonus", recipe.entropy_bonus > 0, "entropy"),
        ("entropy_top_quantile", recipe.entropy_top_quantile < 1, "entropy"),
        ("importance_cap", recipe.importance_cap > 0, "sampler"),
    )
    for setting, is_read, name in readers:
        if is_read and getattr(batch, f"{name}_BT") is None:
            value = getattr(recipe, setting)
            raise MathsError(
                f"recipe {recipe.name} ({setting}={value:g}) reads {name}: give {name}"
            )
    missing = {array is None for array in (batch.values_BT, batch.old_values_BT, batch.returns_BT)}
    if recipe.has_critic and len(missing) > 1:
        raise MathsError("the critic's loss needs values, old_values and returns: give all or none")
