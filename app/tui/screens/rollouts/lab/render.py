"""The lab as lines: settings, measures of both recipes, and before and after in its scope."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from grpo_engine.config.recipes import Recipe
from grpo_tui.app.charts.axis import axis
from grpo_tui.app.charts.series import Series, cut
from grpo_tui.app.inspector.groups import letter
from grpo_tui.app.inspector.lab import MEASURES, MISSING, VARIED, differences, undetermined
from grpo_tui.app.inspector.layout import lay_out
from grpo_tui.app.inspector.measures import Values, shades
from grpo_tui.app.text.numbers import share, short, signed, with_unit
from grpo_tui.app.text.prompt_text import asked as last_question
from grpo_tui.app.text.safe_text import cell_len, clip, pad
from grpo_tui.app.tui.screens.rollouts.lab.state import LabView, name_of, value_text
from grpo_tui.app.tui.screens.rollouts.render import bars
from grpo_tui.app.tui.widgets.charts.plot import LABELS, Curve, plot, plot_lines
from grpo_tui.app.tui.widgets.charts.stack import GAP, side_by_side
from grpo_tui.app.tui.widgets.panel import Line, list_row, paragraph, visible

MAX_NAME = 48  # cells of a recipe's name or a prompt, so that the numbers are near it
TOKEN_ROWS = 3  # of an answer's tokens: text, before and after
NO_TOKENS = (
    "No token numbers are recorded here, so only the signal is known; record.tokens=all records "
    "them in a new run (c)."
)


def setting_lines(base: Recipe, recipe: Recipe, selected: int, width: int) -> list[Line]:
    """One line per setting: its value, and the recorded one if it was changed."""
    lines = []
    names = ["recipe" if name == "name" else name for name in VARIED]
    column = min(max(map(len, names)) + 1, width - 16)
    for index, name in enumerate(VARIED):
        current = index == selected
        new, old = getattr(recipe, name), getattr(base, name)
        text = f"◂ {value_text(new)} ▸" if current else f"  {value_text(new)}"
        before = f"  was {value_text(old)}" if new != old else ""
        style = "bold " * current + ("accent" if new != old else "text")
        line = [(pad(names[index], column), "label"), (clip(text + before, width - column), style)]
        lines.append(list_row(line, width, selected=current))
    count = len(differences(base, recipe))
    text = f"{count} changed from the run" if count else "unchanged"
    return [*lines, [], [(text, "label")]]


def table_lines(view: LabView, width: int) -> list[Line]:
    """The four measures under the run's recipe and under the other one."""
    column = 13 if width >= 80 else 11 if width >= 64 else 8
    name_width = min(MAX_NAME, width - len(MEASURES) * column)
    names = [name if cell_len(name) < column else name.split()[-1] for name, _ in MEASURES]
    heading = " " * name_width + "".join(pad(name, column, ">") for name in names)
    lines = [[(heading, "label")]]
    before = _measures(view, view.base)
    for index, (recipe, name) in enumerate((
        (view.base, "the run"), (view.recipe, name_of(view.recipe, view.base)),
    )):  # fmt: skip
        line = [(f"{'○●'[index]} ", colour_of(index)), (pad(name, name_width - 2), "text")]
        for value, old in zip(_measures(view, recipe), before, strict=True):
            style = "text" if value in (old, "…") else "bold accent"
            line.append((pad(value, column, ">"), style))
        lines.append(line)
    return lines


def colour_of(index: int) -> str:
    """The colour of the run's recipe (0) or of the other one (1)."""
    return f"cycle.{index - 1}" if index else "label"


def _measures(view: LabView, recipe: Recipe) -> list[str]:
    effect = view.effect(recipe)
    if effect is None:
        return ["…"] * len(MEASURES)
    pairs = zip(effect.measures, MEASURES, strict=True)
    return [with_unit(value, unit) for value, (_, unit) in pairs]


def scope_lines(view: LabView, width: int, height: int) -> list[Line]:
    """Charts over the steps; the groups of the step; or the answers of the group."""
    if view.scope == "steps":
        return chart_lines(view, width, height)
    if view.base not in view.outcomes or view.recipe not in view.outcomes:
        return [[("computing", "")]]
    if view.scope == "step":
        return group_lines(view, width, height)
    if not view.answers:
        text = "This group has no token numbers: t changes to the step."
        return paragraph(text, width, 3, "text")
    lines = answer_lines(view, width, max(3, height - TOKEN_ROWS - 1))
    return [*lines, [], *token_lines(view, width, height - len(lines) - 1)]


def chart_lines(view: LabView, width: int, height: int) -> list[Line]:
    """The four measures over the steps, two beside each other."""
    width, height = (width - GAP) // 2, height // 2
    if height < 3 or width < LABELS + 4:
        return []
    charts = [_chart(view, index, width, height) for index in range(len(MEASURES))]
    return [*side_by_side(charts[:2], width), *side_by_side(charts[2:], width)]


def _chart(view: LabView, measure: int, width: int, height: int) -> list[Line]:
    title, unit = MEASURES[measure]
    first, last = view.steps[0], view.steps[-1]
    wide = width - LABELS
    curves: list[Curve] = []
    for index, recipe in enumerate((view.base, view.recipe)):
        values = {step: value for step, effect in view.curve(recipe).items()
                 if (value := effect.measures[measure]) is not None}  # fmt: skip
        series = Series(unsmoothed=True, smoothing=0.0).extended(values, values.values())
        trace = cut(series, series.steps, last - first, 2 * wide, first)
        curves.append(Curve(trace, colour_of(index)))
    scale = axis((value for curve in curves for value in curve.values()), unit=unit,
                 natural=(0.0, 1.0) if unit == "share" else (-math.inf, math.inf))  # fmt: skip
    if not view.pending and not any(curve.trace.columns for curve in curves):
        title += ": unknown"
    rows = plot_lines(plot(curves, scale, wide, height - 1), scale)
    return [[(pad(" " + title, width), "label")], *rows]


def group_lines(view: LabView, width: int, height: int) -> list[Line]:
    """One row per group of the step, before and after."""
    space = min(MAX_NAME, width - 4 - 54)  # beside the columns
    rows = []
    for group in view.groups:
        effects = [view.outcomes[r].effect(group.index) for r in (view.base, view.recipe)]
        prompt = pad(last_question(group.prompt_text), space) if space > 23 else ""
        rows.append((f"{group.index + 1:3} {prompt}", {
            "signal": ["yes" if effect.with_signal else "no" for effect in effects],
            "clipped": [share(effect.measures[0]) for effect in effects],
            "mean push": [short(effect.measures[2]) for effect in effects],
        }))  # fmt: skip
    selected = view.groups.index(view.group) if view.group in view.groups else 0
    return _before_after(rows, selected, width, height)


def answer_lines(view: LabView, width: int, height: int) -> list[Line]:
    """One row per answer of the group: advantage, clipped share and push."""
    assert view.group is not None
    outcomes = [
        view.outcomes[recipe].answers(view.group.index) for recipe in (view.base, view.recipe)
    ]
    rows = [
        (f" {letter(index)} ", {
            "advantage": [signed(effect.advantage) for effect in effects],
            "clipped": [share(effect.measures[0] or 0.0) for effect in effects],
            "push in the loss": [signed(effect.push, 2 + (width >= 57)) for effect in effects],
        })
        for index, *effects in zip(view.answers, *outcomes, strict=True)
    ]  # fmt: skip
    return _before_after(rows, view.answer_at, width, height)


def _before_after(
    rows: Sequence[tuple[str, dict[str, list[str]]]], selected: int, width: int, height: int
) -> list[Line]:
    """A table whose cells are `before → after`, as many rows as fit."""
    if not rows:
        return []
    cell = 8 if width >= 57 else 5
    name, columns = rows[0]
    heads = (pad(column, 2 * cell + 3, "^") for column in columns)
    lines = [[(" " * len(name) + "".join(heads), "label")]]
    for index in visible([1] * len(rows), height - 1, selected):
        name, columns = rows[index]
        line = [(name, "text")]
        for before, after in columns.values():
            style = "label" if after == before else "bold accent"
            line += [(f"{before:>{cell}}", "text"), (" → ", "label"), (f"{after:<{cell}}", style)]
        lines.append(list_row(line, width, selected=index == selected))
    return lines


def token_lines(view: LabView, width: int, height: int) -> list[Line]:
    """The selected answer, then the others, as far as there are lines.

    Under a text is each token's gradient, before and after, on one scale for the group.
    """
    assert view.group is not None
    recipes = (view.base, view.recipe)
    outcomes = [view.outcomes[recipe].gradients(view.group.index) for recipe in recipes]
    scaled = shades("push", [answer for gradient, _ in outcomes for answer in gradient.tolist()])
    count = len(view.answers)
    lines: list[Line] = []
    for row in sorted(range(count), key=lambda row: row != view.answer_at):
        drawn = [
            (scaled[row + count * index], set(np.flatnonzero(clipped[row]).tolist()))
            for index, (_, clipped) in enumerate(outcomes)
        ]
        for part in _token_parts(view, row, drawn, width):
            if len(lines) + len(part) > height:
                return lines
            lines += part
        lines.append([])
    return lines


def _token_parts(
    view: LabView, row: int, drawn: Sequence[tuple[Values, set[int]]], width: int
) -> Iterator[list[Line]]:
    """Each line of an answer's tokens with the bars of their gradients, before and after."""
    assert view.group is not None
    replies = view.rows[view.group.index, view.answers[row]].replies
    head = letter(view.answers[row])
    for line in lay_out(view.texts(row), max(2, width - 6)):
        text = [(f"{head:<6}", "label")]
        text += [(p.text, "label" if p.token in replies else "text") for p in line]
        part = [text]
        if not all(p.token in replies for p in line):
            part += [
                [(f"{name:<6}", "label"), *bars(values, line, stopped)]
                for name, (values, stopped) in zip(("was", "would"), drawn, strict=True)
            ]
        yield part
        head = ""


def missing_lines(view: LabView, width: int) -> list[Line]:
    """Which numbers are missing, and how they are recorded."""
    effect = view.effect(view.recipe)
    if effect is None or not effect.missing:
        return []
    if not effect.tokens:
        return paragraph(NO_TOKENS, width, 3, "warn")
    text = " ".join(MISSING[name] for name in MISSING if name in effect.missing)
    return paragraph(text, width, 2, "label")


def notes(view: LabView, width: int, limit: int) -> list[Line]:
    """What the numbers say exactly, and what they cannot say."""
    before, parts = view.effect(view.base), []
    if names := undetermined(view.recipe, view.base):
        parts.append(f"Not in these numbers: {', '.join(names)}; the updates are the run's.")
    if view.recipe.pays_in_reward:
        parts.append("The KL is in the rewards of this recipe, not in its loss.")
    parts.append("Exact for the stored answers, by the loss itself, in each step's last pass. "
                 "Later steps would have had another policy and other answers.")  # fmt: skip
    if view.left_out and view.scope == "steps":
        count = len(view.steps)
        parts.append(f"{count} of {count + view.left_out} steps are read, evenly spread.")
    if before and before.tokens:
        low, high = short(before.lowest, 3), short(before.highest, 3)
        parts.append("Every ratio is 1: with one pass, no bound is reached." if low == high
                     else f"The run's ratios are from {low} to {high}.")  # fmt: skip
    return paragraph(" ".join(parts), width, limit, "label")
