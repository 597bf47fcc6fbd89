"""A range of steps under several recipes, read and computed bit by bit in the reader thread."""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from grpo_engine.config.recipes import Recipe
from grpo_tui.app.inspector.lab import Effect, StepNumbers, WhatIf, step_numbers, what_if
from grpo_tui.app.tui.screens.rollouts.load import StepGroups, completed, replaced, why_no_terms
from grpo_tui.experiments.values import TokenRow

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader

SLICE_S = 0.05  # of work before the reader thread may serve another screen
MOST_STEPS = 100
MOST_TOKENS = 8_000_000  # some 300 MB of numbers

Rows = dict[tuple[int, int], TokenRow]
Here = Mapping[Recipe, WhatIf]
Effects = dict[tuple[Recipe, int], Effect]


def read_step(reader: "StoreReader", shown: StepGroups, step: int) -> tuple[StepNumbers, Rows]:
    """Read a step of training of the shown run; also its tokens by index of group and answer."""
    run = shown.run
    groups = tuple(g for g in reader.groups(run.key, step, "train") if not replaced(g))
    whole = shown.at(step, groups)
    recorded = reader.tokens_of(run.key, [group.key for group in groups if group.has_tokens])
    # a group without a signal may have numbers, but no update whose denominators would be its own
    told = any(row.updates for tokens in recorded.values() for row in tokens.rows)
    rows: Rows = {}
    for group in groups:
        tokens = recorded.get(group.key)
        if tokens is None or (told and not all(row.updates for row in tokens.rows)):
            continue
        if not why_no_terms(whole, group, tokens):
            rows |= {(group.index, row.index): row for row in completed(whole, group, tokens).rows}
    return step_numbers(step, groups, rows, run.max_length), rows


def spread(steps: Sequence[int], most: int) -> tuple[int, ...]:
    """Thin the steps out evenly, keeping the first and the last."""
    if len(steps) <= most or most < 2:
        return tuple(steps[-most:])
    last = len(steps) - 1
    return tuple(steps[i * last // (most - 1)] for i in range(most))


class Study:
    """The numbers of steps, kept packed, and what each recipe makes of them.

    Only the reader thread calls `advance` and `here`.
    """

    def __init__(self, shown: StepGroups) -> None:
        self._shown = shown
        self._was = shown.run.recipe
        self._packed: dict[int, StepNumbers] = {}
        self._here: tuple[StepNumbers, Rows] | None = None

    def here(
        self, reader: "StoreReader", recipes: Sequence[Recipe], known: Here
    ) -> tuple[Here, Rows]:
        """The shown step under each recipe, as far as it is not known, and its tokens."""
        if self._here is None:
            self._here = read_step(reader, self._shown, self._shown.step)
        numbers, rows = self._here
        return {
            recipe: known.get(recipe) or what_if(numbers, recipe, self._was, sloped=True)
            for recipe in recipes
        }, rows

    def advance(self, reader: "StoreReader", wanted: Sequence[tuple[Recipe, int]]) -> Effects:
        """Compute the first of the wanted steps under a recipe, for a moment."""
        found: Effects = {}
        end = time.monotonic() + SLICE_S
        for recipe, step in wanted:
            if step not in self._packed:
                self._packed[step], _ = read_step(reader, self._shown, step)
            found[recipe, step] = what_if(self._packed[step], recipe, self._was).effect()
            if time.monotonic() > end:
                break
        return found
