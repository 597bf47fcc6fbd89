"""The metrics of a loss, by TRL's names, as (sum, count): summed first, divided once.

Names that end in `min` or `max` are extremes over completions or tokens, stored as (value, 1).
"""

from collections.abc import Mapping, Sequence

import mlx.core as mx

from grpo_engine.config import recipes
from grpo_engine.config.recipes import Recipe
from grpo_engine.maths.loss import Terms
from grpo_engine.maths.trust import AT_HIGH, AT_LOW, FREE

Pair = tuple[mx.array, mx.array]


def metrics(terms: Terms, recipe: str | Recipe) -> dict[str, Pair]:
    """Every metric of one micro-batch as (sum, count), lazy."""
    recipe, mask_BT = recipes.recipe(recipe), terms.mask
    result = {
        "kl_to_old": pair(terms.kl_to_old, mask_BT),
        "ratio/mean": pair(terms.ratio, mask_BT),
        "ratio/clamped": pair(terms.clamped, mask_BT),
        "advantage/abs_mean": pair(mx.abs(terms.advantage), mask_BT),
    }
    if terms.kl is not None:
        result["kl"] = pair(terms.kl, mask_BT)
    if terms.entropy is not None:
        result["entropy"] = pair(terms.entropy, mask_BT)
    if recipe.trust_rule.stops_at:
        result |= clip_metrics(terms) | {"at_bound": at_bound(terms)}
    if recipe.importance_cap > 0:
        result |= importance_metrics(terms, recipe)
    if recipe.reads_sampler:
        result["sampling/masked_ratio"] = pair(~terms.on_policy, mask_BT)
    if recipe.trust_rule.caps:
        capped_BT = (terms.side == AT_HIGH) & (terms.advantage > 0)
        result["cispo_clip_ratio"] = over_ratios(terms, capped_BT)
    if terms.gate is not None:
        is_per_row = terms.gate.shape[1] == 1
        counted_BT = mx.ones(terms.gate.shape) if is_per_row else mask_BT
        result["vespo/phi_seq_mean"] = pair(terms.gate, counted_BT)
    if terms.target is not None:
        result |= target_metrics(terms, recipe.target_tolerance)
    if recipe.has_critic:
        result["value/loss"] = pair(terms.value_loss, mask_BT)
    return result


def pair(values_Bt: mx.array, mask_Bt: mx.array) -> Pair:
    """(Σ values on the mask, Σ mask)."""
    mask_Bt = mask_Bt.astype(mx.float32)
    return (values_Bt.astype(mx.float32) * mask_Bt).sum(), mask_Bt.sum()


def over_ratios(terms: Terms, flags_BT: mx.array) -> Pair:
    """(Σ, count) over the ratios: one per token, or one per completion."""
    if terms.per_row:
        return pair(flags_BT.any(axis=1), mx.ones(flags_BT.shape[0]))
    return pair(flags_BT, terms.mask)


def share_by_completion(terms: Terms, flags_BT: mx.array) -> tuple[mx.array, mx.array]:
    """The share of flagged tokens in each completion [B], and whether it has any tokens [B]."""
    if terms.per_row:
        return flags_BT.any(axis=1).astype(mx.float32), mx.ones(flags_BT.shape[0], dtype=mx.bool_)
    tokens_B = terms.mask.astype(mx.float32).sum(axis=1)
    flagged_B = (flags_BT & terms.mask).astype(mx.float32).sum(axis=1)
    return flagged_B / mx.maximum(tokens_B, 1.0), tokens_B > 0


def clip_metrics(terms: Terms) -> dict[str, Pair]:
    """How often a bound is active: low on tokens pushed down, high on tokens pushed up."""
    low_BT, high_BT = terms.side == AT_LOW, terms.side == AT_HIGH
    low_B, has_tokens_B = share_by_completion(terms, low_BT)
    high_B, _ = share_by_completion(terms, high_BT)
    count = has_tokens_B.any().astype(mx.float32)
    return {
        "clip_ratio/low_mean": over_ratios(terms, low_BT),
        "clip_ratio/high_mean": over_ratios(terms, high_BT),
        "clip_ratio/region_mean": over_ratios(terms, low_BT | high_BT),
        "clip_ratio/low_min": (mx.where(has_tokens_B, low_B, 1.0).min() * count, count),
        "clip_ratio/high_max": (mx.where(has_tokens_B, high_B, 0.0).max(), count),
    }


def importance_metrics(terms: Terms, recipe: Recipe) -> dict[str, Pair]:
    """Smallest, mean and largest importance weight, per token or per completion."""
    weight_BT, mask_BT = terms.importance, terms.mask
    if recipe.has_sequence_importance:
        weight_BT = weight_BT[:, :1]
        mask_BT = mx.ones(weight_BT.shape, dtype=mx.bool_)
    count = mask_BT.any().astype(mx.float32)
    name = "sampling/importance_sampling_ratio"
    return {
        f"{name}/min": (mx.where(mask_BT, weight_BT, mx.inf).min(), count),
        f"{name}/mean": pair(weight_BT, mask_BT),
        f"{name}/max": (mx.where(mask_BT, weight_BT, 0.0).max(), count),
    }


def at_bound(terms: Terms) -> Pair:
    """(pushed tokens that have stopped, pushed tokens); pushed: advantage not 0, on policy."""
    return pair(terms.side != FREE, terms.on_policy & (terms.advantage != 0))


def target_metrics(terms: Terms, tolerance: float) -> dict[str, Pair]:
    """Pushed tokens within tolerance·t of their target t, beyond it, or on the wrong side of p_old.

    p = ratio·p_old, and p_old is the lower bound of the ratio.
    """
    assert terms.target is not None
    pushed_BT = terms.mask & (terms.advantage != 0)
    beyond_BT = terms.advantage * (terms.ratio * terms.low - terms.target)
    reached_BT = mx.abs(beyond_BT) <= tolerance * terms.target
    is_worse_BT = terms.advantage * (terms.ratio - 1) < 0
    return {
        "target/reached": pair(reached_BT, pushed_BT),
        "target/overshot": pair(~reached_BT & (beyond_BT > 0), pushed_BT),
        "target/wrong_way": pair(~reached_BT & is_worse_BT, pushed_BT),
    }


def merged(
    parts: Sequence[Mapping[str, tuple[float, float]]],
) -> dict[str, tuple[float, float]]:
    """(Σ sums, Σ counts) over micro-batches; extremes: the smallest or largest with a count."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: _merged(name, [part[name] for part in parts if name in part]) for name in names}


def _merged(name: str, pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    if name.endswith(("min", "max")):
        extreme = min if name.endswith("min") else max
        return extreme((item for item in pairs if item[1] > 0), default=(0.0, 0.0))
    return sum(total for total, _ in pairs), sum(count for _, count in pairs)
