"""What the lab shows: another recipe beside the run's, over its steps, in a step or a group.

Only the reader thread calls the functions with a reader.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from grpo_engine.config import recipes
from grpo_engine.config.custom import Custom
from grpo_engine.config.declaration import as_text
from grpo_engine.config.recipes import Recipe
from grpo_tui.app.inspector.lab import (
    Effect,
    Outcome,
    StepNumbers,
    differences,
    outcome_of,
    step_numbers,
    together,
)
from grpo_tui.app.text.numbers import clamped
from grpo_tui.app.tui.screens.rollouts.state import (
    StepGroups,
    completed,
    split,
    was_replaced,
    without_losses,
)
from grpo_tui.experiments.values import GroupView, TokenRow

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader

MAX_STEPS = 100
MAX_TOKENS = 8_000_000  # some 300 MB of numbers

Scope = Literal["steps", "step", "group"]
SCOPES: tuple[Scope, ...] = ("steps", "step", "group")
Rows = Mapping[tuple[int, int], TokenRow]  # by index of group and answer
Outcomes = Mapping[Recipe, Outcome]
Effects = Mapping[tuple[Recipe, int], Effect]


def read_step(reader: "StoreReader", base: StepGroups, step: int) -> tuple[StepNumbers, Rows]:
    """Read a step of training of a run: its numbers, and its tokens."""
    run = base.run
    groups = tuple(g for g in reader.groups(run.key, step, "train") if not was_replaced(g))
    groups_of_step = replace(base, step=step, groups=groups)
    rows: dict[tuple[int, int], TokenRow] = {}
    for group in groups:
        tokens = reader.tokens(run.key, group.key)
        if tokens is not None and not without_losses(groups_of_step, group, tokens):
            rows |= {(group.index, row.index): row for row in completed(group, tokens).rows}
    return step_numbers(step, groups, rows, run.max_length), rows


def spread(steps: Sequence[int], limit: int) -> tuple[int, ...]:
    """Thin the steps out evenly, keeping the first and the last."""
    if len(steps) <= limit or limit < 2:
        return tuple(steps[-limit:])
    last = len(steps) - 1
    return tuple(steps[i * last // (limit - 1)] for i in range(limit))


class Study:
    """The numbers of steps, packed once, and what each recipe makes of them."""

    def __init__(self, base: StepGroups) -> None:
        self._base = base
        self._packed: dict[int, StepNumbers] = {}
        self._rows: Rows = {}  # of the selected step

    def _numbers(self, reader: "StoreReader", step: int) -> StepNumbers:
        if step not in self._packed:
            self._packed[step], rows = read_step(reader, self._base, step)
            self._rows = rows if step == self._base.step else self._rows
        return self._packed[step]

    def of_step(
        self, reader: "StoreReader", recipes: Sequence[Recipe], outcomes: Outcomes
    ) -> tuple[Outcomes, Rows]:
        """The selected step under each recipe, as far as it is not known, and its tokens."""
        numbers, base = self._numbers(reader, self._base.step), self._base.run.recipe
        return {
            recipe: outcomes.get(recipe) or outcome_of(numbers, recipe, base, by_token=True)
            for recipe in recipes
        }, self._rows

    def effect(self, reader: "StoreReader", recipe: Recipe, step: int) -> Effect:
        """A step under a recipe."""
        return outcome_of(self._numbers(reader, step), recipe, self._base.run.recipe).effect()


@dataclass(frozen=True, slots=True, kw_only=True)
class LabView:
    """The lab's state; every change returns a new one."""

    step: StepGroups
    group: GroupView | None
    answer: int  # its position among those with token numbers
    recipe: Recipe  # that is tried
    steps: tuple[int, ...]  # that are read
    left_out: int = 0  # steps of the run that are not read
    scope: Scope = "steps"
    effects: Effects = field(default_factory=dict)
    outcomes: Outcomes = field(default_factory=dict)
    rows: Rows = field(default_factory=dict)

    @property
    def base(self) -> Recipe:
        """The run's recipe."""
        return self.step.run.recipe

    @property
    def recipes(self) -> tuple[Recipe, ...]:
        """The run's recipe and the one that is tried, if they differ."""
        return tuple(dict.fromkeys((self.base, self.recipe)))

    @property
    def pending(self) -> list[tuple[Recipe, int]]:
        """What is not computed yet, step by step from the newest."""
        pairs = [(recipe, step) for step in reversed(self.steps) for recipe in self.recipes]
        return [pair for pair in pairs if pair not in self.effects]

    def curve(self, of: Recipe) -> dict[int, Effect]:
        """The effects of a recipe by step, as far as they are computed.

        A newest step that is still being trained is left out: it has no token numbers yet.
        """
        effects = {s: self.effects[of, s] for s in self.steps if (of, s) in self.effects}
        *before, last = effects or [0]
        if before and not effects[last].tokens and effects[before[-1]].tokens:
            del effects[last]
        return effects

    def effect(self, of: Recipe) -> Effect | None:
        """The effect of a recipe in this scope; None before all of it is computed."""
        if self.scope == "steps":
            effects = self.curve(of).values()
            complete = all((of, step) in self.effects for step in self.steps)
            return together(effects) if effects and complete else None
        group = self.group.index if self.group and self.scope == "group" else None
        return self.outcomes[of].effect(group) if of in self.outcomes else None

    @property
    def title(self) -> str:
        """The scope in words."""
        if self.scope == "steps":
            first, last = (self.steps[0], self.steps[-1]) if self.steps else (0, 0)
            return f"steps {first} to {last}" if last > first else f"step {first}"
        step = f"step {self.step.step}"
        number = self.group.index + 1 if self.group else 0
        return f"group {number} of {step}" if self.scope == "group" else step

    @property
    def groups(self) -> list[GroupView]:
        """The groups of the step that were in its update."""
        signal = self.outcomes[self.base].signal
        return [group for group in self.step.groups if group.index in signal]

    @property
    def answers(self) -> list[int]:
        """The answers of the group that have token numbers, by their index."""
        group = self.group
        indices = [(group.index, r.index) for r in group.rollouts] if group else []
        return [index[1] for index in indices if (row := self.rows.get(index)) and row.ids]

    @property
    def answer_at(self) -> int:
        """The position of the selected answer among them."""
        return clamped(self.answer, len(self.answers))

    def texts(self, position: int) -> tuple[str, ...]:
        """The tokens of one of the answers."""
        assert self.group is not None
        index = self.answers[position]
        text = next(r.text for r in self.group.rollouts if r.index == index)
        return split(text, self.rows[self.group.index, index])

    def moved(self, by: int) -> "LabView":
        """Select another answer of the group, or another group of the step."""
        if self.scope == "group":
            return replace(self, answer=clamped(self.answer_at + by, len(self.answers)))
        groups = self.groups if self.scope == "step" and self.outcomes else []
        if self.group not in groups:
            return self
        position = clamped(groups.index(self.group) + by, len(groups))
        return replace(self, group=groups[position], answer=0)

    def changes(self) -> tuple[tuple[str, Any], ...]:
        """The settings of a new run with this recipe, by path, where they differ."""
        start = start_of(self.recipe, self.base)
        changes = [(name, getattr(self.recipe, name)) for name in differences(self.recipe, start)]
        named = [("recipe", start.name)] if start is not self.base else []
        return tuple((f"algorithm.{name}", value) for name, value in [*named, *changes])


def start_of(other: Recipe, base: Recipe) -> Recipe:
    """What a recipe is described from: the run's recipe, or another one as it is declared."""
    return base if other.name == base.name else recipes.recipe(other.name)


def value_text(value: Any) -> str:
    """Format a setting's value; `off` if there is none."""
    return value.short if isinstance(value, Custom) else as_text(value) or "off"


def name_of(other: Recipe, base: Recipe) -> str:
    """A recipe by what is different in it."""
    start = start_of(other, base)
    changed = differences(other, start)
    if "beta" in changed and (not other.beta or not start.beta):
        changed = tuple(name for name in changed if name != "anchor")
    names = [other.name] if start is not base else []
    names += [f"{name} {value_text(getattr(other, name))}" for name in changed]
    return ", ".join(names) or "unchanged"
