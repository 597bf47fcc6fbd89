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
    recipe, mask = recipes.recipe(recipe), terms.mask
    result = {
        "kl_to_old": summed(terms.kl_to_old, mask),
        "ratio/mean": summed(terms.ratio, mask),
        "ratio/clamped": summed(terms.clamped, mask),
        "advantage/abs_mean": summed(mx.abs(terms.advantage), mask),
    }
    if terms.kl is not None:
        result["kl"] = summed(terms.kl, mask)
    if terms.entropy is not None:
        result["entropy"] = summed(terms.entropy, mask)
    if recipe.trust_rule.stops_at:
        result |= clip_metrics(terms) | {"at_bound": at_bound(terms)}
    if recipe.importance_cap > 0:
        result |= importance_metrics(terms, recipe)
    if recipe.reads_sampler:
        result["sampling/masked_ratio"] = summed(~terms.on_policy, mask)
    if recipe.trust_rule.caps:
        capped = (terms.side == AT_HIGH) & (terms.advantage > 0)
        result["cispo_clip_ratio"] = over_ratios(terms, capped)
    if terms.gate is not None:
        is_per_row = terms.gate.shape[1] == 1
        counted = mx.ones(terms.gate.shape) if is_per_row else mask
        result["vespo/phi_seq_mean"] = summed(terms.gate, counted)
    if terms.target is not None:
        result |= target_metrics(terms, recipe.target_tolerance)
    if recipe.has_critic:
        result["value/loss"] = summed(terms.value_loss, mask)
    return result


def summed(values: mx.array, counted: mx.array) -> Pair:
    """(Σ values over what is counted, its number)."""
    counted = counted.astype(mx.float32)
    return (values.astype(mx.float32) * counted).sum(), counted.sum()


def over_ratios(terms: Terms, flags: mx.array) -> Pair:
    """(Σ, count) over the ratios: one per token, or one per completion."""
    if terms.per_row:
        return summed(flags.any(axis=1), mx.ones(flags.shape[0]))
    return summed(flags, terms.mask)


def share_by_completion(terms: Terms, flags: mx.array) -> tuple[mx.array, mx.array]:
    """The share of flagged tokens in each completion [B], and whether it has any tokens [B]."""
    if terms.per_row:
        return flags.any(axis=1).astype(mx.float32), mx.ones(flags.shape[0], dtype=mx.bool_)
    tokens = terms.mask.astype(mx.float32).sum(axis=1)
    flagged = (flags & terms.mask).astype(mx.float32).sum(axis=1)
    return flagged / mx.maximum(tokens, 1.0), tokens > 0


def clip_metrics(terms: Terms) -> dict[str, Pair]:
    """How often a bound is active: low on tokens pushed down, high on tokens pushed up."""
    low, high = terms.side == AT_LOW, terms.side == AT_HIGH
    low_share, counts = share_by_completion(terms, low)
    high_share, _ = share_by_completion(terms, high)
    any_counts = counts.any().astype(mx.float32)
    return {
        "clip_ratio/low_mean": over_ratios(terms, low),
        "clip_ratio/high_mean": over_ratios(terms, high),
        "clip_ratio/region_mean": over_ratios(terms, low | high),
        "clip_ratio/low_min": (mx.where(counts, low_share, 1.0).min() * any_counts, any_counts),
        "clip_ratio/high_max": (mx.where(counts, high_share, 0.0).max(), any_counts),
    }


def importance_metrics(terms: Terms, recipe: Recipe) -> dict[str, Pair]:
    """Smallest, mean and largest importance weight, per token or per completion."""
    weight, counted = terms.importance, terms.mask
    if recipe.has_sequence_importance:
        weight, counted = weight[:, :1], mx.ones((weight.shape[0], 1), dtype=mx.bool_)
    any_counts = counted.any().astype(mx.float32)
    name = "sampling/importance_sampling_ratio"
    return {
        f"{name}/min": (mx.where(counted, weight, mx.inf).min(), any_counts),
        f"{name}/mean": summed(weight, counted),
        f"{name}/max": (mx.where(counted, weight, 0.0).max(), any_counts),
    }


def at_bound(terms: Terms) -> Pair:
    """(pushed tokens that have stopped, pushed tokens); pushed: advantage not 0, on policy."""
    pushed = terms.on_policy & (terms.advantage != 0)
    return summed(terms.side != FREE, pushed)


def target_metrics(terms: Terms, tolerance: float) -> dict[str, Pair]:
    """Pushed tokens within tolerance·t of their target t, beyond it, or on the wrong side of p_old.

    p = ratio·p_old, and p_old is the lower bound of the ratio.
    """
    assert terms.target is not None
    pushed = terms.mask & (terms.advantage != 0)
    beyond = terms.advantage * (terms.ratio * terms.low - terms.target)
    reached = mx.abs(beyond) <= tolerance * terms.target
    flags = {
        "target/reached": reached,
        "target/overshot": ~reached & (beyond > 0),
        "target/wrong_way": ~reached & (terms.advantage * (terms.ratio - 1) < 0),
    }
    return {name: summed(flag, pushed) for name, flag in flags.items()}


def merged(
    parts: Sequence[Mapping[str, tuple[float, float]]],
) -> dict[str, tuple[float, float]]:
    """(Σ sums, Σ counts) over micro-batches; extremes: the smallest or largest with a count."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: _merged(name, [part[name] for part in parts if name in part]) for name in names}


def _merged(name: str, pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    if name.endswith(("min", "max")):
        counted = [pair for pair in pairs if pair[1] > 0]
        pick = min if name.endswith("min") else max
        return pick(counted) if counted else (0.0, 0.0)
    return sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)
