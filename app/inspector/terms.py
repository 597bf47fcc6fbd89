"""Compute token terms with the engine's loss from stored log-probabilities; its only caller in app.

MLX is imported in the thread that asks first; callers must use one thread.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from app.inspector.values import Side, TokenTerm, UpdateTotals
from experiments.values import GroupView, TokenRow, TokenView
from grpo_engine.config.recipes import Recipe
from grpo_engine.platform.device import require_mlx

if TYPE_CHECKING:
    import mlx.core as mx

SIDES: dict[int, Side] = {-1: "low", 0: "free", 1: "high", 2: "ceiling"}


def group_terms(
    tokens: TokenView, recipe: Recipe, totals: UpdateTotals, *, at: int,
    advantages: Sequence[Sequence[float]] | None = None,
) -> tuple[tuple[TokenTerm, ...], ...]:  # fmt: skip
    """Compute a group's token terms in pass `at` (0-based); -1 takes the scores after the step.

    `advantages` replaces the recorded ones, for the lab.
    """
    require_mlx()
    import mlx.core as mx

    from grpo_engine.maths.loss import policy_loss
    from grpo_engine.maths.weight import Totals

    rows = tokens.rows
    width = max((len(row.ids) for row in rows), default=0)
    if width == 0:
        return tuple(() for _ in rows)
    new = [_new(row, at) for row in rows]
    given = advantages if advantages is not None else [row.advantages for row in rows]
    mask = mx.array([[1.0] * len(row.ids) + [0.0] * (width - len(row.ids)) for row in rows])
    ref = _pad([row.reference for row in rows], width) if all(r.reference for r in rows) else None
    drawn = [row.sampled or row.sampler for row in rows]
    sampler = _pad(drawn, width) if all(drawn) else None
    loss = policy_loss(
        _pad(new, width),
        _pad([row.old for row in rows], width),
        ref,
        _pad(given, width),
        mask,
        _without_missing(recipe, has_reference=ref is not None, has_sampler=sampler is not None),
        group_ids=mx.zeros((len(rows),), dtype=mx.int32),
        token_ids=_pad([row.ids for row in rows], width, kind=mx.int32),
        max_length=totals.max_length,
        totals=Totals(rows=totals.rows, tokens=totals.tokens, micro_batches=totals.micro_batches),
        sampler=sampler,
    )
    arrays = _lists(loss.terms)
    return tuple(
        tuple(_term(arrays, row, i, t, new[i][t]) for t in range(len(row.ids)))
        for i, row in enumerate(rows)
    )


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


def _new(row: TokenRow, at: int) -> tuple[float, ...]:
    if at < 0:
        return row.after or (row.passes[-1] if row.passes else row.old)
    return row.passes[at] if at < len(row.passes) else row.old


def _without_missing(recipe: Recipe, *, has_reference: bool, has_sampler: bool) -> Recipe:
    # missing records give no weights: those parts of the loss read 0
    changes: dict[str, Any] = {}
    if not has_reference and recipe.anchor_place == "loss":
        changes |= {"anchor": "none", "beta": 0.0}
    if not has_sampler:
        changes |= {"importance_cap": 0.0, "off_policy_mask": 0.0}
    return replace(
        recipe, entropy_bonus=0.0, entropy_target=None, entropy_top_quantile=1.0, **changes
    )


def _pad(rows: Sequence[Sequence[float]], width: int, kind: "mx.Dtype | None" = None) -> "mx.array":
    import mlx.core as mx

    padded = []
    for row in rows:
        filled = list(row) * width if len(row) == 1 and width > 1 else list(row)
        padded.append((filled + [0] * width)[:width])
    return mx.array(padded, dtype=kind or mx.float32)


FIELDS = (
    "advantage", "ratio", "low", "high", "side", "clamped", "updated", "importance", "kept",
    "objective", "weight", "anchor", "kl", "target", "contribution",
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
        updated=bool(at("updated")),
        importance=at("importance"),
        kept=bool(at("kept")),
        objective=at("objective"),
        weight=at("weight"),
        anchor=at("anchor"),
        kl=at("kl"),
        target=at("target"),
        # the engine minimises the loss; people see the objective, which is maximised
        contribution=-at("contribution"),
    )
