"""Compute token terms with the engine's loss from recorded numbers; its only caller in app.

MLX is imported in the thread that asks first; callers must use one thread.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from grpo_engine.config.recipes import Recipe
from grpo_engine.events import UpdateTotals
from grpo_engine.platform.device import require_mlx
from grpo_tui.app.inspector.values import Side, TokenTerm
from grpo_tui.experiments.values import TokenRow, TokenView

if TYPE_CHECKING:
    import mlx.core as mx

    from grpo_engine.maths.loss import Loss, Terms
    from grpo_engine.maths.weight import Totals

T = TypeVar("T")
LAST = 1_000_000  # as a pass: each answer's last one
SIDES: dict[int, Side] = {-1: "low", 0: "free", 1: "high", 2: "ceiling"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Packed:
    """The recorded numbers of answers in one pass, as [B,T] arrays; `known` by the loss's names."""

    new: "mx.array"
    old: "mx.array"
    ids: "mx.array"
    mask: "mx.array"
    advantages: "mx.array"
    known: Mapping[str, "mx.array"]
    floor_entropy: "mx.array | None"  # what the lowest entropy of a pushed token is taken from
    group_ids: "mx.array"
    totals: "Totals"
    entropy_bonus: float
    minibatches: tuple[int, ...]  # of each answer


OPTIONAL = ("ref", "sampler", "entropy", "values", "old_values", "returns")


def packed(rows: Sequence[TokenRow], at: int, groups: Sequence[int] = ()) -> Packed:
    """Pack answers in pass `at` (0-based), or in an answer's last one before it.

    Every row must have `updates`, and some row tokens. `groups` are the answers' groups, one if
    not given.
    """
    require_mlx()
    import mlx.core as mx

    width = max(len(row.ids) for row in rows)
    entropy = [of_pass(row.entropies, at) or row.entropy for row in rows]
    arrays = {
        "ref": [row.reference for row in rows],
        "sampler": [row.sampled or row.sampler for row in rows],
        "entropy": entropy,
        "values": [of_pass(row.values, at) or () for row in rows],
        "old_values": [row.old_values for row in rows],
        "returns": [row.returns for row in rows],
    }
    known = {name: _pad(given, width) for name, given in arrays.items() if all(given)}
    first = [row.entropy for row in rows]
    totals = [of_pass(row.updates, at) or UpdateTotals(rows=1, tokens=1) for row in rows]
    return Packed(
        new=_pad([of_pass(row.passes, at) or row.old for row in rows], width),
        old=_pad([row.old for row in rows], width),
        ids=_pad([row.ids for row in rows], width),
        mask=_pad([inside(row) for row in rows], width),
        advantages=_pad(list(map(_by_token, rows)), width),
        known=known,
        floor_entropy=_pad(first, width) if all(first) else known.get("entropy"),
        group_ids=mx.array(list(groups) or [0] * len(rows), dtype=mx.int32),
        totals=_together(totals),
        entropy_bonus=totals[0].entropy_bonus,
        minibatches=tuple(one.minibatch for one in totals),
    )


def loss_terms(numbers: Packed, recipe: Recipe, *, max_length: int) -> "Terms":
    """The engine's loss terms of recorded numbers.

    What the recipe reads and the run did not record has no weight.
    """
    return _loss(numbers, recipe, max_length).terms


def slopes(numbers: Packed, recipe: Recipe, *, max_length: int) -> tuple["mx.array", "mx.array"]:
    """-dL/dlog π of each token without the KL term, and of the KL term alone. [B,T] each

    L is the whole loss: with a ratio or a KL of whole answers it reads a token in the terms of its
    neighbours too.
    """
    import mlx.core as mx

    def of(how: Recipe) -> mx.array:
        def objective(new: mx.array) -> mx.array:
            return -_loss(replace(numbers, new=new), how, max_length).value

        found: mx.array = mx.grad(objective)(numbers.new)
        return found

    whole = of(recipe)
    if recipe.beta == 0 or recipe.anchor_place == "reward":
        return whole, mx.zeros_like(whole)
    # the loss is linear in beta; a beta of 0 would be another recipe, which may not exist
    pull = of(replace(recipe, beta=2 * recipe.beta)) - whole
    return whole - pull, pull


def _loss(numbers: Packed, recipe: Recipe, max_length: int) -> "Loss":
    from grpo_engine.maths.loss import policy_loss

    chosen = replace(recipe, entropy_bonus=numbers.entropy_bonus)
    known: dict[str, Any] = {"ref": None, **numbers.known}
    return policy_loss(
        numbers.new,
        numbers.old,
        advantages=numbers.advantages,
        mask=numbers.mask,
        recipe=_without_missing(chosen, set(OPTIONAL) - numbers.known.keys()),
        group_ids=numbers.group_ids,
        token_ids=numbers.ids,
        max_length=max_length,
        totals=numbers.totals,
        **known,
    )


def group_terms(
    tokens: TokenView, recipe: Recipe, *, at: int, max_length: int
) -> tuple[tuple[TokenTerm, ...], ...]:
    """Compute a group's token terms in pass `at` (0-based), or in an answer's last one before it.

    Every row must have `updates`.
    """
    rows = tokens.rows
    if not any(row.ids for row in rows):
        return tuple(() for _ in rows)
    numbers = packed(rows, at)
    terms = _lists(loss_terms(numbers, recipe, max_length=max_length))
    push, pull = slopes(numbers, recipe, max_length=max_length)
    terms |= {"push": push.tolist(), "pull": pull.tolist()}
    return tuple(
        tuple(
            _term(terms, row, i, t, (of_pass(row.passes, at) or row.old)[t])
            for t in range(len(row.ids))
        )
        for i, row in enumerate(rows)
    )


def of_pass(passes: Sequence[T], at: int) -> T | None:
    """The numbers of pass `at`, or of the last one before it; None if there are none."""
    return passes[min(at, len(passes) - 1)] if passes else None


def inside(row: TokenRow) -> tuple[int, ...]:
    """1 for each token of an answer that is in the loss."""
    return row.mask or (1,) * len(row.ids)


def not_recorded(tokens: TokenView, recipe: Recipe, think_budget: int) -> str:
    """What the loss read and the run did not record, as a sentence; empty if nothing."""
    rows = tokens.rows
    older = not all(row.updates for row in rows)
    if older and recipe.stop != "never" and recipe.minibatches > 1:
        return "no push: the stop rule ended the step before the minibatch of these answers"
    entropies = recipe.entropy_bonus or recipe.entropy_target is not None
    unknown = {
        "which answers were in each minibatch": older and recipe.minibatches > 1,
        "which answers were in each micro-batch": older and recipe.weight == "per_batch_token",
        "which tokens the think budget forced": older and think_budget > 0,
        "the entropies": older and (entropies or recipe.entropy_top_quantile < 1),
        "the critic's values": older and recipe.signal == "gae",
        "the reference's log-probabilities": recipe.beta > 0
        and recipe.anchor_place == "loss"
        and not all(row.reference for row in rows),
        "the sampler's log-probabilities": recipe.reads_sampler
        and not all(row.sampler for row in rows),
    }
    missing = [words for words, holds in unknown.items() if holds]
    return f"its term is not known: this run did not record {' or '.join(missing)}" * bool(missing)


def _without_missing(recipe: Recipe, missing: AbstractSet[str]) -> Recipe:
    # what was not recorded has no weight: those parts of the loss read 0
    changes: dict[str, Any] = {}
    if "ref" in missing and recipe.anchor_place == "loss":
        changes |= {"beta": 0.0}
    if "sampler" in missing:
        changes |= {"importance_cap": 0.0, "off_policy_mask": 0.0}
    if "entropy" in missing:
        changes |= {"entropy_bonus": 0.0, "entropy_top_quantile": 1.0}
    return replace(recipe, **changes)


def _together(updates: Sequence[UpdateTotals]) -> "Totals":
    """The denominators of each answer, [B,1] each: a group may be spread over micro-batches."""
    import mlx.core as mx

    from grpo_engine.maths.weight import Totals

    def column(name: str) -> Any:
        found = [getattr(one, name) for one in updates]
        return None if None in found else mx.array(found, dtype=mx.float32)[:, None]

    names = [field.name for field in fields(Totals)]
    return Totals(**{name: column(name) for name in names})


def _pad(rows: Sequence[Sequence[float]], width: int) -> "mx.array":
    import mlx.core as mx
    import numpy as np

    padded = np.zeros((len(rows), width), np.float32)
    for place, row in enumerate(rows):
        padded[place, : len(row)] = row
    return mx.array(padded)


def _by_token(row: TokenRow) -> Sequence[float]:
    """One advantage for the answer, or one for each of its tokens, as one for each token."""
    return row.advantages * len(row.ids) if len(row.advantages) == 1 else row.advantages


FIELDS = (
    "mask", "advantage", "ratio", "low", "high", "side", "clamped", "updated", "importance",
    "on_policy", "objective", "weight", "anchor", "kl", "target", "entropy", "value_loss", "bonus",
    "contribution",
)  # fmt: skip


def _lists(terms: Any) -> dict[str, Any]:
    return {
        name: None if getattr(terms, name) is None else getattr(terms, name).tolist()
        for name in FIELDS
    }


def _term(arrays: dict[str, Any], row: TokenRow, i: int, t: int, new: float) -> TokenTerm:
    def at(name: str) -> Any:
        return None if arrays[name] is None else arrays[name][i][t]

    return TokenTerm(
        advantage=at("advantage"),
        new=new,
        old=row.old[t],
        reference=row.reference[t] if row.reference else None,
        ratio=at("ratio"),
        low=at("low"),
        high=at("high"),
        side=SIDES[int(at("side"))],
        clamped=bool(at("clamped")),
        in_loss=bool(at("mask")),
        updated=bool(at("updated")),
        importance=at("importance"),
        on_policy=bool(at("on_policy")),
        objective=at("objective"),
        weight=at("weight"),
        anchor=at("anchor"),
        kl=at("kl"),
        target=at("target"),
        entropy=at("entropy"),
        value_loss=at("value_loss"),
        bonus=at("bonus"),
        # the engine minimises the loss; people see the objective, which is maximised
        contribution=-at("contribution"),
        push=at("push"),
        pull=at("pull"),
    )
