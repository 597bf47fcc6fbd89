"""The lab: recompute a stored group under other settings, from its recorded numbers."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from app.inspector.terms import LAST, group_advantages, group_terms
from app.inspector.values import TokenTerm
from experiments.values import GroupView, TokenView
from grpo_engine.config import recipes
from grpo_engine.config.recipes import RECIPES, SETTINGS, Recipe
from grpo_engine.errors import RecipeError

# Settings that can be varied, as far as recorded log-probabilities and rewards suffice.
_STEPS = {name: setting.steps for name, setting in SETTINGS.items() if setting.steps}
_MOST_ASKED = ("beta", "clip_low", "clip_high", "delta")
KNOBS: dict[str, tuple[Any, ...]] = {
    "name": tuple(RECIPES), **{name: _STEPS[name] for name in _MOST_ASKED}, **_STEPS,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerEffect:
    """One answer's part in the update: its advantage, its clipped share, its total push."""

    advantage: float
    clipped: float
    kl: float | None
    push: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """A group under one recipe: an effect per answer and the terms of every token."""

    recipe: Recipe
    answers: tuple[AnswerEffect, ...]
    terms: tuple[tuple[TokenTerm, ...], ...]

    @property
    def clipped(self) -> float:
        """The share of the group's tokens that are clipped."""
        tokens = [term for answer in self.terms for term in answer]
        return sum(term.side != "free" for term in tokens) / len(tokens) if tokens else 0.0


def what_if(
    tokens: TokenView, groups: Sequence[GroupView], group: GroupView, recipe: Recipe, *,
    was: Recipe, max_length: int,
) -> WhatIf:  # fmt: skip
    """Compute the group's last pass under another recipe than the run's, `was`.

    Advantages come from the whole step's rewards, denominators from the recorded update. The lowest
    entropy of a pushed token is the group's own if the recipe asks for another share than the run.
    """
    place = next(i for i, other in enumerate(groups) if other.key == group.key)
    by_index = {
        rollout.index: values
        for rollout, values in zip(
            group.rollouts, group_advantages(groups, recipe)[place], strict=True
        )
    }
    given = [by_index.get(row.index, list(row.advantages)) for row in tokens.rows]
    if recipe.per_token:
        given = [list(row.advantages) for row in tokens.rows]
    if recipe.entropy_top_quantile != was.entropy_top_quantile:
        tokens = _without_floor(tokens)
    terms = group_terms(tokens, recipe, at=LAST, max_length=max_length, advantages=given)
    return WhatIf(recipe=recipe, answers=tuple(_effect(answer) for answer in terms), terms=terms)


def _without_floor(tokens: TokenView) -> TokenView:
    rows = (
        replace(row, updates=tuple(
            replace(one, entropy_floor=None, updated_tokens=None) for one in row.updates
        ))
        for row in tokens.rows
    )  # fmt: skip
    return replace(tokens, rows=tuple(rows))


def _effect(terms: Sequence[TokenTerm]) -> AnswerEffect:
    count = max(1, len(terms))
    kls = [term.kl for term in terms if term.kl is not None]
    return AnswerEffect(
        advantage=sum(term.advantage for term in terms) / count,
        clipped=sum(term.side != "free" for term in terms) / count,
        kl=sum(kls) / len(kls) if kls else None,
        push=sum(term.contribution for term in terms),
    )


def turn(recipe: Recipe, knob: str, by: int) -> Recipe:
    """Move one setting by some notches, skipping values that the recipe does not allow."""
    notches = KNOBS[knob]
    now = getattr(recipe, knob)
    start = notches.index(now) if now in notches else _nearest(notches, now)
    step = 1 if by > 0 else -1
    for place in range(start + by, len(notches) if step > 0 else -1, step):
        try:
            return changed(recipe, knob, notches[place])
        except RecipeError:
            continue
    return recipe


def changed(recipe: Recipe, knob: str, value: Any) -> Recipe:
    """Return the recipe with one setting changed, and with it any setting that would conflict."""
    if knob == "name":
        return recipes.recipe(value)
    extra: dict[str, Any] = {}
    if knob == "anchor":
        extra["beta"] = 0.0 if value == "none" else recipe.beta or recipes.recipe("grpo").beta
    return recipes.recipe(recipe, **{knob: value, **extra})


def _nearest(notches: Sequence[Any], value: Any) -> int:
    if not isinstance(value, int | float):
        return 0
    numbers = [(abs(n - value), i) for i, n in enumerate(notches) if isinstance(n, int | float)]
    return min(numbers)[1]


def differences(one: Recipe, other: Recipe) -> tuple[str, ...]:
    """Return the settings in which two recipes differ, except the name."""
    return tuple(
        field.name
        for field in fields(Recipe)
        if field.name != "name" and getattr(one, field.name) != getattr(other, field.name)
    )
