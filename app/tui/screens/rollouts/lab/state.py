"""What the lab shows: another recipe beside the run's, over its steps or in one of them.

Only the reader thread calls the functions with a reader.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any

import numpy as np

from grpo_engine.config import recipes
from grpo_engine.config.declaration import as_text
from grpo_engine.config.recipes import Recipe
from grpo_engine.events import REPLACED
from grpo_engine.frozen import frozen
from grpo_tui.app.inspector.lab import (
    LossEffect,
    RecipeOutcome,
    StepNumbers,
    outcome_of,
    step_numbers,
    together,
)
from grpo_tui.app.inspector.stored import (
    GroupList,
    load_tokens,
    split,
)
from grpo_tui.app.text.numbers import clamped
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.values import RecordedTokens

MAX_STEPS = 100
MAX_TOKENS = 8_000_000  # some 300 MB of numbers

Index = tuple[int, int]  # group and rollout
Rows = Mapping[Index, RecordedTokens]


def read_step(reader: StoreReader, base: GroupList, step: int) -> tuple[StepNumbers, Rows]:
    """Read a step of training of a run: its numbers, and its tokens."""
    run = base.run
    groups = tuple(  # without those whose place in the update another one took
        g
        for g in reader.groups(run.key, step=step, origin="train")
        if not g.no_signal.endswith(REPLACED)
    )
    rows: dict[Index, RecordedTokens] = {}
    for group in groups:
        tokens, missing = load_tokens(reader, run, group)
        if not missing:
            rows |= {(group.index, row.index): row for row in tokens if row.ids}
    return step_numbers(step, groups, rows, run.max_length), rows


def spread(steps: Sequence[int], limit: int) -> tuple[int, ...]:
    """Thin the steps out evenly, keeping the first and the last."""
    last = len(steps) - 1
    return tuple(steps[i] for i in np.linspace(last, 0, min(limit, len(steps)), dtype=int)[::-1])


class Study:
    """The numbers of steps, packed once, and what each recipe makes of them."""

    def __init__(self, base: GroupList) -> None:
        self._base = base
        self._packed: dict[int, StepNumbers] = {}
        self.rows: Rows = {}  # tokens of the selected step

    def outcome(self, reader: StoreReader, recipe: Recipe, step: int) -> RecipeOutcome:
        """A step under a recipe."""
        if step not in self._packed:
            self._packed[step], rows = read_step(reader, self._base, step)
            self.rows = rows if step == self._base.step else self.rows
        return outcome_of(self._packed[step], recipe, self._base.run.recipe)

    def outcomes(
        self, reader: StoreReader, pairs: Sequence[tuple[Recipe, int]]
    ) -> list[RecipeOutcome]:
        """Several steps, each under a recipe."""
        return [self.outcome(reader, *pair) for pair in pairs]


@frozen
class LabView:
    """The lab's state; every change returns a new one."""

    step: GroupList
    selected: Index
    recipe: Recipe  # the one that is tried
    steps: tuple[int, ...]  # the steps of the charts
    in_step: bool = False  # whether the selected step is shown, and not all of them
    effects: Mapping[tuple[Recipe, int], LossEffect] = field(default_factory=dict)
    outcomes: Mapping[Recipe, RecipeOutcome] = field(default_factory=dict)  # the selected step
    rows: Rows = field(default_factory=dict)

    @property
    def base(self) -> Recipe:
        """The run's recipe."""
        return self.step.run.recipe

    @property
    def pending(self) -> list[tuple[Recipe, int]]:
        """What is not computed yet: the selected step, then the others from the newest."""
        steps = dict.fromkeys((self.step.step, *reversed(self.steps)))
        recipes = dict.fromkeys((self.base, self.recipe))
        pairs = [(recipe, step) for step in steps for recipe in recipes]
        return [pair for pair in pairs if pair not in self.effects]

    def with_outcome(
        self, recipe: Recipe, step: int, outcome: RecipeOutcome, rows: Rows
    ) -> "LabView":
        """Take what was computed."""
        effects = {**self.effects, (recipe, step): outcome.effect()}
        selected = {recipe: outcome} if step == self.step.step else {}
        return replace(self, effects=effects, outcomes={**self.outcomes, **selected}, rows=rows)

    def curve(self, of: Recipe) -> dict[int, LossEffect]:
        """The effects of a recipe by step, as far as they are computed.

        A newest step that is still being trained is left out: it has no token numbers yet.
        """
        effects = {s: self.effects[of, s] for s in self.steps if (of, s) in self.effects}
        *before, last = effects or [0]
        if before and not effects[last].tokens and effects[before[-1]].tokens:
            del effects[last]
        return effects

    def effect(self, of: Recipe) -> LossEffect | None:
        """The effect of a recipe on what is shown; None before all of it is computed."""
        if self.in_step:
            return self.effects.get((of, self.step.step))
        effects = self.curve(of).values()
        complete = all((of, step) in self.effects for step in self.steps)
        return together(effects) if effects and complete else None

    def progress(self, of: Recipe) -> str:
        """How far the effect of a recipe is computed."""
        done = sum((of, step) in self.effects for step in self.steps)
        steps = f", {done} of {len(self.steps)} steps done"
        return "computing" + steps * (not self.in_step)

    @property
    def title(self) -> str:
        """What is shown, in words."""
        if self.in_step:
            return f"step {self.step.step}"
        return f"steps {self.steps[0]} to {self.steps[-1]}"

    @property
    def rollouts(self) -> list[Index]:
        """The answers of the step that have token numbers."""
        return list(self.rows)

    @property
    def rollout_at(self) -> int:
        """The position of the selected answer among them."""
        return self.rollouts.index(self.selected) if self.selected in self.rollouts else 0

    @property
    def texts(self) -> tuple[str, ...]:
        """The tokens of the selected answer."""
        index = self.rollouts[self.rollout_at]
        texts = {(g.index, r.index): r.text for g in self.step.groups for r in g.rollouts}
        return split(texts[index], self.rows[index])

    def moved(self, by: int) -> "LabView":
        """Select another answer of the step."""
        rollouts = self.rollouts if self.in_step else []
        position = clamped(self.rollout_at + by, len(rollouts))
        return replace(self, selected=rollouts[position]) if rollouts else self

    def changes(self) -> tuple[tuple[str, Any], ...]:
        """The settings of a new run with this recipe, by path, where they differ."""
        start = start_of(self.recipe, self.base)
        changes = recipes.changes(start, self.recipe).items()
        named = [("recipe", start.name)] if start is not self.base else []
        return tuple((f"algorithm.{name}", value) for name, value in [*named, *changes])


def start_of(other: Recipe, base: Recipe) -> Recipe:
    """What a recipe is described from: the run's recipe, or another one as it is declared."""
    return base if other.name == base.name else recipes.recipe(other.name)


def value_text(value: Any) -> str:
    """Format a setting's value; `off` if there is none, a function without its folder."""
    return Path(as_text(value)).name or "off"


def name_of(other: Recipe, base: Recipe, *, names: bool = True) -> str:
    """A recipe by what is different in it: its settings and their values, or the values alone."""
    start = start_of(other, base)
    parts = [other.name] if start is not base else []
    parts += [
        f"{name} {value_text(value)}" if names else value_text(value)
        for name, value in recipes.changes(start, other).items()
    ]
    return ", ".join(parts) or "unchanged"
