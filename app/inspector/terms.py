"""Compute token terms with the engine's loss from recorded numbers; its only caller in app.

MLX is imported in the thread that asks first; callers must use one thread.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from app.inspector.values import Side, TokenTerm
from experiments.values import GroupView, TokenRow, TokenView
from grpo_engine.config.recipes import Recipe
from grpo_engine.events import UpdateTotals
from grpo_engine.platform.device import require_mlx

if TYPE_CHECKING:
    import mlx.core as mx

    from grpo_engine.maths.weight import Totals

T = TypeVar("T")
LAST = 1_000_000  # as a pass: each answer's last one
SIDES: dict[int, Side] = {-1: "low", 0: "free", 1: "high", 2: "ceiling"}


def group_terms(
    tokens: TokenView, recipe: Recipe, *, at: int, max_length: int,
    advantages: Sequence[Sequence[float]] | None = None,
) -> tuple[tuple[TokenTerm, ...], ...]:  # fmt: skip
    """Compute a group's token terms in pass `at` (0-based), or in an answer's last one before it.

    Every row must have `updates`. `advantages` replaces the recorded ones, for the lab.
    """
    require_mlx()
    import mlx.core as mx

    from grpo_engine.maths.loss import policy_loss

    rows = tokens.rows
    width = max((len(row.ids) for row in rows), default=0)
    if width == 0:
        return tuple(() for _ in rows)
    new = [of_pass(row.passes, at) or row.old for row in rows]
    drawn = [row.sampled or row.sampler for row in rows]
    arrays = {
        "ref": [row.reference for row in rows],
        "sampler": drawn,
        "entropy": [of_pass(row.entropies, at) or row.entropy for row in rows],
        "values": [of_pass(row.values, at) or () for row in rows],
        "old_values": [row.old_values for row in rows],
        "returns": [row.returns for row in rows],
    }
    known: dict[str, Any] = {
        name: _pad(given, width) for name, given in arrays.items() if all(given)
    }
    totals = [of_pass(row.updates, at) or UpdateTotals(rows=1, tokens=1) for row in rows]
    chosen = replace(recipe, entropy_bonus=totals[0].entropy_bonus)
    recorded_for = _without_missing(chosen, arrays.keys() - known.keys())
    loss = policy_loss(
        _pad(new, width),
        _pad([row.old for row in rows], width),
        known.pop("ref", None),
        _pad(list(map(_by_token, rows, advantages or [row.advantages for row in rows])), width),
        _pad([inside(row) for row in rows], width),
        recorded_for,
        group_ids=mx.zeros((len(rows),), dtype=mx.int32),
        token_ids=_pad([row.ids for row in rows], width),
        max_length=max_length,
        totals=_together(totals),
        **known,
    )
    terms = _lists(loss.terms)
    return tuple(
        tuple(_term(terms, row, i, t, new[i][t]) for t in range(len(row.ids)))
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


def group_advantages(groups: Sequence[GroupView], recipe: Recipe) -> list[list[list[float]]]:
    """Return the advantages of a step under another recipe: [group][answer][1 value].

    Signals that need more than final rewards (`process`, `gae`) keep the recorded ones.
    """
    require_mlx()
    from grpo_engine.maths.advantage import advantages

    recorded = [[[r.advantage or 0.0] for r in group.rollouts] for group in groups]
    names = list(dict.fromkeys(w.name for g in groups for r in g.rollouts for w in r.rewards))
    if recipe.per_token or not names:
        return recorded
    weight = {w.name: w.weight for g in groups for r in g.rollouts for w in r.rewards}
    table, ids = [], []
    for number, group in enumerate(groups):
        for rollout in group.rollouts:
            scores = {w.name: w.value for w in rollout.rewards}
            table.append([scores.get(name) for name in names])
            ids.append(number)
    result = advantages(table, ids, recipe, [weight[name] for name in names])
    flat: Any = result.values.tolist()
    values = iter(flat)
    return [[[next(values)] for _ in group.rollouts] for group in groups]


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

    padded = [[*row, *[0] * (width - len(row))] for row in rows]
    return mx.array(padded, dtype=mx.float32)


def _by_token(row: TokenRow, advantages: Sequence[float]) -> Sequence[float]:
    """One advantage for the answer, or one for each of its tokens, as one for each token."""
    return tuple(advantages) * len(row.ids) if len(advantages) == 1 else advantages


FIELDS = (
    "mask", "advantage", "ratio", "low", "high", "side", "clamped", "updated", "importance",
    "kept", "objective", "weight", "anchor", "kl", "target", "entropy", "value_loss", "bonus",
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
        kept=bool(at("kept")),
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
    )
