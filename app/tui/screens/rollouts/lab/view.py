"""What the lab shows: variants of the run's recipe, over a group, a step or a range of steps."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from grpo_engine.config.recipes import Recipe, recipe
from grpo_tui.app.inspector.lab import Effect, differences, together
from grpo_tui.app.tui.screens.rollouts.lab.study import Effects, Here, Rows
from grpo_tui.app.tui.screens.rollouts.load import StepGroups
from grpo_tui.app.tui.screens.rollouts.view import cut
from grpo_tui.experiments.values import GroupView

Scope = Literal["steps", "step", "group"]
SCOPES: tuple[Scope, ...] = ("steps", "step", "group")
MOST_VARIANTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class LabView:
    """The lab's state; every change returns a new one."""

    shown: StepGroups
    group: GroupView | None
    answer: int
    variants: tuple[Recipe, ...]
    steps: tuple[int, ...]  # of the range
    left_out: int = 0  # steps of the range that are not read
    chosen: int = 0
    scope: Scope = "steps"
    effects: Effects = field(default_factory=dict)
    here: Here = field(default_factory=dict)
    rows: Rows = field(default_factory=dict)

    @property
    def base(self) -> Recipe:
        """The run's recipe."""
        return self.shown.run.recipe

    @property
    def recipe(self) -> Recipe:
        """The chosen variant."""
        return self.variants[self.chosen]

    @property
    def recipes(self) -> tuple[Recipe, ...]:
        """The run's recipe and the variants, each once."""
        return tuple(dict.fromkeys((self.base, *self.variants)))

    @property
    def wanted(self) -> list[tuple[Recipe, int]]:
        """What is not computed yet, step by step from the newest."""
        every = [(one, step) for step in reversed(self.steps) for one in self.recipes]
        return [one for one in every if one not in self.effects]

    def curve(self, of: Recipe) -> dict[int, Effect]:
        """The effects of a recipe by step, as far as they are computed.

        A newest step that is still being trained is left out: it has no token numbers yet.
        """
        found = {s: self.effects[of, s] for s in self.steps if (of, s) in self.effects}
        *before, last = found or [0]
        if before and not found[last].tokens and found[before[-1]].tokens:
            del found[last]
        return found

    def effect(self, of: Recipe) -> Effect | None:
        """The effect of a recipe on what is looked at; None before all of it is computed."""
        if self.scope == "steps":
            found = self.curve(of).values()
            whole = all((of, step) in self.effects for step in self.steps)
            return together(found) if found and whole else None
        if of not in self.here:
            return None
        return self.here[of].effect(self.group.index if self.group and self.scope == "group"
                                    else None)  # fmt: skip

    @property
    def title(self) -> str:
        """What is looked at."""
        if self.scope == "steps":
            first, last = (self.steps[0], self.steps[-1]) if self.steps else (0, 0)
            return f"steps {first} to {last}" if last > first else f"step {first}"
        step = f"step {self.shown.step}"
        place = self.group.index + 1 if self.group else 0
        return f"group {place} of {step}" if self.scope == "group" else step

    @property
    def places(self) -> list[int]:
        """The answers of the group that have token numbers, by their index."""
        if self.group is None:
            return []
        group = self.group
        return [one.index for one in group.rollouts
                if (row := self.rows.get((group.index, one.index))) and row.ids]  # fmt: skip

    @property
    def row(self) -> int:
        """The chosen answer's place among them."""
        return min(self.answer, max(0, len(self.places) - 1))

    def texts(self, row: int) -> tuple[str, ...]:
        """The tokens of one of the answers."""
        assert self.group is not None
        index = self.places[row]
        text = next(one.text for one in self.group.rollouts if one.index == index)
        return cut(text, self.rows[self.group.index, index])

    def with_recipe(self, changed: Recipe) -> "LabView":
        """Change the chosen variant."""
        variants = list(self.variants)
        variants[self.chosen] = changed
        return replace(self, variants=tuple(variants))

    def changes(self) -> tuple[tuple[str, Any], ...]:
        """The settings of a new run with the chosen variant, by path, where they differ."""
        start, found = self.base, []
        if self.recipe.name != self.base.name:
            start = recipe(self.recipe.name)
            found.append(("algorithm.recipe", self.recipe.name))
        for name in differences(self.recipe, start):
            found.append((f"algorithm.{name}", getattr(self.recipe, name)))
        return tuple(found)


def value_text(value: Any) -> str:
    """Format a choice's value; `off` if there is none."""
    if value is None:
        return "off"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def name_of(variant: Recipe, base: Recipe) -> str:
    """A variant by what is different in it."""
    named, start = [], base
    if variant.name != base.name:
        named, start = [variant.name], recipe(variant.name)
    changed = differences(variant, start)
    if "beta" in changed and (not variant.beta or not start.beta):
        changed = tuple(name for name in changed if name != "anchor")
    named += [f"{name} {value_text(getattr(variant, name))}" for name in changed]
    return ", ".join(named) or "unchanged"
