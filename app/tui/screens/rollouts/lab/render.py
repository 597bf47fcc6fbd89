"""The lab as lines: settings, measures of both recipes, and what they do to steps and answers."""

import math
from collections.abc import Sequence

import numpy as np

from grpo_engine.config.recipes import Recipe
from grpo_tui.app.charts.axis import ANY, axis
from grpo_tui.app.charts.series import Series, cut
from grpo_tui.app.inspector.groups import letter
from grpo_tui.app.inspector.lab import MEASURES, MISSING, VARIED, undetermined
from grpo_tui.app.inspector.layout import lay_out
from grpo_tui.app.inspector.measures import shades
from grpo_tui.app.text.numbers import MINUS, share, signed, with_unit
from grpo_tui.app.text.safe_text import cell_len, clip, pad
from grpo_tui.app.tui.screens.rollouts.lab.state import LabView, name_of, value_text
from grpo_tui.app.tui.screens.rollouts.render import bars
from grpo_tui.app.tui.widgets.charts.plot import LABELS, Curve, axis_line, plot, plot_lines
from grpo_tui.app.tui.widgets.charts.stack import GAP, side_by_side
from grpo_tui.app.tui.widgets.panel import Line, list_row, paragraph, visible

COLOURS = ("label", "cycle.0")  # of the run's recipe and of the other one
WIDE = 55  # cells from which the answers' columns have more room
MAX_NAME = 48  # cells of a recipe's name, so that the numbers are near it


def setting_lines(base: Recipe, recipe: Recipe, selected: int, width: int) -> list[Line]:
    """One line per setting: its value, and the recorded one if it was changed."""
    lines = []
    names = ["recipe" if name == "name" else name for name in VARIED]
    column = min(max(map(len, names)) + 1, width - 16)
    for index, name in enumerate(VARIED):
        current = index == selected
        new, old = getattr(recipe, name), getattr(base, name)
        text = f"◂ {value_text(new)} ▸" if current else f"  {value_text(new)}"
        before = f" was {value_text(old)}" if new != old else ""
        style = "bold " * current + ("accent" if new != old else "text")
        # a long name takes the cells that a short value leaves
        size = max(column, min(len(names[index]) + 1, width - cell_len(text + before)))
        line = [(pad(names[index], size), "label"), (clip(text + before, width - size), style)]
        lines.append(list_row(line, width, selected=current))
    return lines


def table_lines(view: LabView, width: int) -> list[Line]:
    """The four measures under the run's recipe and under the other one, told apart."""
    column = max(8, min(13, width // 6))
    name_width = min(MAX_NAME, width - len(MEASURES) * column)
    names = [name if cell_len(name) < column else name.split()[-1] for name, _ in MEASURES]
    lines = [[(" " * name_width + "".join(pad(name, column, ">") for name in names), "label")]]
    effects = [view.effect(recipe) for recipe in (view.base, view.recipe)]
    measures = [effect.measures if effect else (None,) * len(MEASURES) for effect in effects]
    texts = [
        distinct_texts(values, unit, column - 1)
        for *values, (_, unit) in zip(*measures, MEASURES, strict=True)
    ]
    for index, (recipe, effect) in enumerate(zip((view.base, view.recipe), effects, strict=True)):
        name = name_of(recipe, view.base) if index else "the run"
        if cell_len(name) > name_width - 2:
            name = name_of(recipe, view.base, names=False)
        line = [(f"{'○●'[index]} ", COLOURS[index]), (pad(name, name_width - 2), "text")]
        if effect:
            line += [
                (
                    pad(pair[index], column, ">"),
                    "bold accent" if effects[0] and pair[index] != pair[0] else "text",
                )
                for pair in texts
            ]
        else:
            line.append((pad(view.progress(recipe), width - name_width, ">"), "label"))
        lines.append(line)
    return lines


def distinct_texts(values: Sequence[float | None], unit: str, width: int) -> list[str]:
    """Two values of a unit, with as many more digits as show that they differ, if these fit."""
    texts = [with_unit(value, unit) for value in values]
    before, after = values
    if before is None or after is None or math.isclose(before, after, rel_tol=1e-6):
        return texts
    if texts[0] != texts[1] and "<" not in "".join(texts):
        return texts
    for digits in range(2, 8):
        more = [
            f"{100 * value:.{digits}f}%" if unit == "share" else f"{value:.{digits + 1}g}"
            for value in (before, after)
        ]
        more = [text.removeprefix("0").replace("e-0", "e-").replace("-", MINUS) for text in more]
        if more[0] != more[1]:
            return more if max(map(len, more)) <= width else texts
    return texts


def result_lines(view: LabView, width: int) -> list[Line]:
    """What the other recipe would have done to the clipped tokens, in a sentence."""
    before, after = view.effect(view.base), view.effect(view.recipe)
    if view.recipe == view.base or not (before and after and before.tokens and after.tokens):
        return []
    names = [path.rpartition(".")[-1] for path, _ in view.changes()]
    setting = names[0] if len(names) == 1 and names[0] in VARIED else ""
    old = f" instead of {value_text(getattr(view.base, setting))}" if setting else ""
    text = f"With {name_of(view.recipe, view.base)}{old}, "
    count, freed = before.clipped, before.clipped - after.clipped
    if freed:
        shares = distinct_texts([e.measures[0] for e in (before, after)], "share", width)
        text += (
            f"{freed:,} of {count:,} clipped tokens would be free"
            if freed > 0
            else f"{after.clipped:,} tokens would be clipped instead of {count:,}"
        )
        text += f": clipped {' → '.join(shares)}."
    elif setting in ("clip_low", "clip_high"):  # a bound that moves does one or the other
        text += f"no token would be clipped differently: {count:,} of {before.tokens:,} are."
    else:
        text += f"the number of clipped tokens would stay {count:,} of {before.tokens:,}."
    return paragraph(text, width, 3, "headline")


def scope_lines(view: LabView, width: int, height: int) -> list[Line]:
    """Charts over the steps, or the answers of the step and the tokens of the selected one."""
    if not view.in_step:
        return chart_lines(view, width, height)
    if view.base not in view.outcomes or view.recipe not in view.outcomes:
        return [[("computing", "")]]
    if not view.rollouts:
        return [[("No answer of this step has token numbers.", "label")]]
    lines = rollout_lines(view, width, max(3, height // 2))
    return [*lines, [], *token_lines(view, width)]


def chart_lines(view: LabView, width: int, height: int) -> list[Line]:
    """The four measures over the steps, two beside each other above their axes."""
    width, height = (width - GAP) // 2, (height - 1) // 2
    if height < 3 or width < LABELS + 4:
        return []
    charts = [_chart(view, index, width, height) for index in range(len(MEASURES))]
    first, last = view.steps[0], view.steps[-1]
    below = [axis_line(f"step {last}", width, first=str(first))]
    rows = (charts[:2], charts[2:], [below, below])
    return [line for row in rows for line in side_by_side(row, width)]


def _chart(view: LabView, measure: int, width: int, height: int) -> list[Line]:
    title, unit = MEASURES[measure]
    first, last = view.steps[0], view.steps[-1]
    wide = width - LABELS
    curves: list[Curve] = []
    all_values: list[dict[int, float]] = []
    for index, recipe in enumerate((view.base, view.recipe)):
        values = {
            step: value
            for step, effect in view.curve(recipe).items()
            if (value := effect.measures[measure]) is not None
        }
        all_values.append(values)
        series = Series(smoothing=0.0).extended(values, values.values())
        trace = cut(series, series.steps, last - first, 2 * wide, first)
        curves.append(Curve(trace, COLOURS[index]))
    scale = axis(
        (value for curve in curves for value in curve.values()),
        unit=unit,
        natural=(0.0, 1.0) if unit == "share" else ANY,
    )
    if not view.pending and not any(curve.trace.columns for curve in curves):
        title += ": unknown"
    if view.recipe != view.base and not view.pending and all(all_values):
        before, after = all_values
        apart = max(abs(after[step] - before[step]) for step in before if step in after)
        if apart == 0:
            title += ": the same"
        elif apart < (scale.high - scale.low) / (2 * height):  # half a line
            title += f": apart by {with_unit(apart, unit)} at most"
    rows = plot_lines(plot(curves, scale, wide, height - 1), scale)
    return [[(pad(" " + title, width), "label")], *rows]


def rollout_lines(view: LabView, width: int, height: int) -> list[Line]:
    """A row per answer of the step, as many as fit; each cell is `before → after`."""
    at, wide = view.rollout_at, width >= WIDE
    arrow, sizes = (" → ", (6, 5, 8)) if wide else ("→", (5, 4, 8))
    heads = zip(("advantage", "clipped", "push"), sizes, strict=True)
    titles = [" " + pad(head, 2 * size + len(arrow), "^") for head, size in heads]
    lines = [[(" " * 5 + "".join(titles), "label")]]
    for position in visible([1] * len(view.rollouts), height - 1, at, top=max(0, at - height // 2)):
        group, index = view.rollouts[position]
        line = [(pad(f"{group + 1:3}{letter(index)}", 5), "text")]
        effects = [view.outcomes[recipe].effect(position) for recipe in (view.base, view.recipe)]
        texts = [
            (signed(e.advantage), share(e.measures[0] or 0.0), signed(e.push, 2 + wide))
            for e in effects
        ]
        for before, after, size in zip(*texts, sizes, strict=True):
            style = "label" if after == before else "bold accent"
            line += [(f" {before:>{size}}", "text"), (arrow, "label"), (f"{after:<{size}}", style)]
        lines.append(list_row(line, width, selected=position == at))
    return lines


def token_lines(view: LabView, width: int) -> list[Line]:
    """The selected answer with each token's gradient below it, before and after."""
    at = view.rollout_at
    arrays = [view.outcomes[recipe].arrays for recipe in (view.base, view.recipe)]
    scaled = shades("push", [of["gradient"][at].tolist() for of in arrays])
    replies = view.rows[view.rollouts[at]].reply_positions
    lines: list[Line] = []
    for part in lay_out(view.texts, max(2, width - 6)):
        lines.append([(" " * 6, "")])
        lines[-1] += [(p.text, "label" if p.token in replies else "text") for p in part]
        if not all(p.token in replies for p in part):
            for name, values, of in zip(("was", "would"), scaled, arrays, strict=True):
                stopped = np.flatnonzero(of["side"][at]).tolist()
                lines.append([(f"{name:<6}", "label"), *bars(values, part, stopped)])
    return lines


def missing_lines(view: LabView, width: int) -> list[Line]:
    """Which numbers are missing, and how they are recorded."""
    effect = view.effect(view.recipe)
    if effect is None or not effect.missing:
        return []
    text = " ".join(MISSING[name] for name in MISSING if name in effect.missing)
    return paragraph(text, width, 3, "label" if effect.tokens else "warn")


def notes(view: LabView, width: int, limit: int) -> list[Line]:
    """What the numbers say exactly, and what they cannot say."""
    parts = []
    if not view.in_step and len(view.steps) < (count := len(view.step.steps)):
        parts.append(f"Computed for {len(view.steps)} of {count:,} steps, evenly spread.")
    if names := undetermined(view.recipe, view.base):
        parts.append(f"Not in these numbers: {', '.join(names)}; the updates are the run's.")
    if view.recipe.anchor_in_reward:
        parts.append("The KL is in the rewards of this recipe, not in its loss.")
    parts.append(
        "Exact for the stored answers, by the loss itself, in each step's last pass. "
        "Later steps would have had another policy and other answers."
    )
    if view.base.passes == view.base.minibatches == 1:
        parts.append("Every ratio is 1: with one pass, no bound is reached.")
    return paragraph(" ".join(parts), width, limit, "label")
