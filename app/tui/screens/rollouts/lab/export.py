"""The lab as files: its measures by step or its answers, under the run's recipe and the other."""

import math
from collections.abc import Iterator

from grpo_engine.config.recipes import Recipe
from grpo_tui.app.charts.lines import Curve
from grpo_tui.app.inspector.groups import letter
from grpo_tui.app.inspector.lab import MEASURES, LossEffect
from grpo_tui.app.tui.exporting import Export, chart_exports, file_stem, table_export
from grpo_tui.app.tui.screens.rollouts.lab.state import LabView, name_of
from grpo_tui.experiments.export.rows import Row


def exports(view: LabView) -> Iterator[Export]:
    """What of the lab is computed: a table, and over the steps its charts."""
    if view.pending:
        return
    stem = f"{file_stem(view.step.run.name)}-what-if"
    if view.in_step:
        name = f"advantage, clipped and push of each answer of step {view.step.step}"
        yield table_export("table", name, stem, lambda: _answers(view))
        return
    yield table_export("table", "the measures of each step, as CSV", stem, lambda: _steps(view))
    yield from chart_exports("the measures", stem, lambda: _curves(view), "step", ())


def _recipes(view: LabView) -> Iterator[tuple[str, Recipe]]:
    yield "the run", view.base
    if view.recipe != view.base:
        yield name_of(view.recipe, view.base), view.recipe


def _measures(effect: LossEffect) -> dict[str, float | None]:
    return {name: value for (name, _), value in zip(MEASURES, effect.measures, strict=True)}


def _steps(view: LabView) -> Iterator[Row]:
    for name, recipe in _recipes(view):
        for step, effect in view.curve(recipe).items():
            yield {"settings": name, "step": step, **_measures(effect)}


def _answers(view: LabView) -> Iterator[Row]:
    for name, recipe in _recipes(view):
        for position, (group, index) in enumerate(view.rollouts):
            effect = view.outcomes[recipe].effect(position)
            yield {
                "settings": name,
                "step": view.step.step,
                "prompt": group + 1,
                "answer": letter(index),
                "advantage": effect.advantage,
                "clipped": effect.measures[0],
                "push": effect.push,
            }


def _curves(view: LabView) -> dict[str, dict[str, Curve]]:
    """The charts of the screen; steps without numbers are gaps."""
    curves: dict[str, dict[str, Curve]] = {measure: {} for measure, _ in MEASURES}
    for name, recipe in _recipes(view):
        effects = view.curve(recipe)
        for measure, by_name in curves.items():
            numbers = (_measures(effect)[measure] for effect in effects.values())
            values = [math.nan if number is None else number for number in numbers]
            by_name[name] = Curve(
                steps=list(effects), values=values, recorded=values, low=values, high=values
            )
    return curves
