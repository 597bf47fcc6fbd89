"""The lab's lines: choices, measures of each variant, and what is looked at, before and after."""

import math
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from grpo_engine.config.recipes import SETTINGS, Recipe
from grpo_tui.app.charts.axis import axis
from grpo_tui.app.inspector.groups import letter
from grpo_tui.app.inspector.heat import LEAST
from grpo_tui.app.inspector.lab import KNOBS, LACKS, MEASURES, Effect, differences, undetermined
from grpo_tui.app.inspector.layout import lay_out
from grpo_tui.app.text.numbers import BARS, share, short, signed, with_unit
from grpo_tui.app.text.prompt_text import asked
from grpo_tui.app.text.safe_text import cell_len, pad, wrap
from grpo_tui.app.tui.looks.colours import Palette, style
from grpo_tui.app.tui.screens.rollouts.lab.view import LabView, name_of, value_text
from grpo_tui.app.tui.screens.rollouts.lines import cells, window
from grpo_tui.app.tui.widgets.charts.plot import LABELS, Canvas, plot_lines
from grpo_tui.app.tui.widgets.panel import Line

MOST_NAME = 48  # cells of a variant's name or a prompt, so that the numbers are near it
NO_TOKENS = (
    "No token numbers are recorded here, so only the signal is known; record.tokens=all records "
    "them in a new run (c)."
)


def knob_lines(
    base: Recipe, recipe: Recipe, chosen: int, width: int, palette: Palette
) -> list[Line]:
    """One line per choice: its value, and the recorded one if it was changed."""
    lines: list[Line] = []
    for place, knob in enumerate(KNOBS):
        here = place == chosen
        back = palette.cursor if here else palette.paper
        name = SETTINGS[knob].label if knob in SETTINGS else "recipe"
        now, was = getattr(recipe, knob), getattr(base, knob)
        front = palette.accent if now != was else palette.text
        text = f"◂ {value_text(now)} ▸" if here else f"  {value_text(now)}"
        before = f"  was {value_text(was)}" if now != was else ""
        before = before if cell_len(text + before) <= width - 11 else ""
        lines.append(
            [
                (pad(name, 11), style(palette.label, back)),
                (pad(text + before, max(1, width - 11)), style(front, back, bold=here)),
            ]
        )
    changed = differences(base, recipe)
    lines.append([])
    count = len(changed)
    words = f"{count} choice{'s differ' if count > 1 else ' differs'} from the run"
    words = words if changed else "as the run was"
    lines.append([(words, style(palette.label))])
    return lines


def table_lines(view: LabView, width: int, palette: Palette) -> list[Line]:
    """The four measures under the run's recipe and under each variant."""
    label = style(palette.label)
    column = 13 if width >= 80 else 11 if width >= 64 else 8
    room = min(MOST_NAME, width - len(MEASURES) * column)
    names = [name if cell_len(name) < column else name.split()[-1] for name, _ in MEASURES]
    head = " " * room + "".join(pad(name, column, ">") for name in names)
    lines: list[Line] = [[(head, label)]]
    before = _measured(view, view.base)
    for place, variant in enumerate((view.base, *view.variants)):
        here = place == view.chosen + 1
        back = palette.cursor if here else palette.paper
        values = _measured(view, variant)
        mark, text = "● " if place else "○ ", "the run"
        if place:
            text = name_of(variant, view.base)
        exact = style(colour_of(place, palette)) + style(None, back)  # the curve's
        line: Line = [(mark, exact),
                      (pad(text, room - 2), style(palette.text, back))]  # fmt: skip
        for value, was in zip(values, before, strict=True):
            differs = value not in (was, "…")
            look = style(palette.accent if differs else palette.text, back, bold=differs)
            line.append((pad(value, column, ">"), look))
        lines.append(_filled(line, width, back))
    return lines


def colour_of(place: int, palette: Palette) -> int:
    """The colour of the run's recipe (0) or of a variant."""
    return palette.cycle[(place - 1) % len(palette.cycle)] if place else palette.label


def _measured(view: LabView, recipe: Recipe) -> list[str]:
    effect = view.effect(recipe)
    if effect is None:
        return ["…"] * len(MEASURES)
    pairs = zip(effect.measures, MEASURES, strict=True)
    return [with_unit(value, unit) for value, (_, unit) in pairs]


def chart_lines(view: LabView, width: int, height: int, palette: Palette) -> list[Line]:
    """The four measures over the steps, two beside each other."""
    each, tall = (width - 2) // 2, height // 2
    if tall < 3 or each < LABELS + 4:
        return []
    lines: list[Line] = []
    for top in range(0, len(MEASURES), 2):
        left, right = (_chart(view, top + i, each, tall, palette) for i in range(2))
        lines += [[*a, ("  ", None), *b] for a, b in zip(left, right, strict=True)]
    return lines


def _chart(view: LabView, measure: int, width: int, height: int, palette: Palette) -> list[Line]:
    title, unit = MEASURES[measure]
    first, last = view.steps[0], view.steps[-1]
    canvas = Canvas(width - LABELS, height - 2)
    curves = []
    for place, recipe in enumerate((view.base, *view.variants)):
        values = [(step, one.measures[measure]) for step, one in view.curve(recipe).items()]
        curves.append((place, [(step, value) for step, value in values if value is not None]))
    curves.sort(key=lambda one: one[0] == view.chosen + 1)
    scale = axis((value for _, curve in curves for _, value in curve), unit=unit,
                 natural=(0.0, 1.0) if unit == "share" else (-math.inf, math.inf))  # fmt: skip
    wide, tall = 2 * canvas.width - 1, 4 * canvas.height
    for place, curve in curves:
        dots = [((step - first) * wide // max(1, last - first), scale.dot(value, tall))
                for step, value in curve]  # fmt: skip
        canvas.line(dots, colour_of(place, palette))
    label = style(palette.label)
    ends = f"step {first}".ljust(max(0, canvas.width - len(str(last)))) + str(last)
    if not view.wanted and not any(curve for _, curve in curves):
        title, ends = f"{title}: unknown", ""
    return [
        [(pad(" " + title, width), label)],
        *plot_lines(canvas.cells(), scale, palette),
        [(pad(" " * LABELS + ends, width), label)],
    ]


def group_lines(view: LabView, width: int, height: int, palette: Palette) -> list[Line]:
    """One row per group of the step, before and after; those that do not fit are counted."""
    was, now = view.here[view.base], view.here[view.recipe]
    room = min(MOST_NAME, width - 4 - 54)  # beside the columns
    rows = []
    for group in view.shown.groups:
        if group.index in was.signal:
            a, b = was.effect(group.index), now.effect(group.index)
            prompt = pad(asked(group.prompt_text), room) if room > 23 else ""
            rows.append((f"{group.index + 1:3} {prompt}", [
                (_yes(a), _yes(b)),
                (with_unit(a.measures[0], "share"), with_unit(b.measures[0], "share")),
                (with_unit(a.measures[2], ""), with_unit(b.measures[2], "")),
            ]))  # fmt: skip
    shown = height - 1 - (len(rows) >= height)
    lines = _before_after(("signal", "clipped", "mean push"), rows[:shown], None, width, palette)
    more = f"… and {len(rows) - shown} more groups"
    return [*lines, [(more, style(palette.label))]] if len(rows) > shown else lines


def _yes(effect: Effect) -> str:
    return "yes" if effect.with_signal else "no"


def answers_lines(view: LabView, width: int, height: int, palette: Palette) -> list[Line]:
    """One row per answer near the chosen one: advantage, clipped share and push."""
    assert view.group is not None
    digits = 2 + (width >= 57)
    answers = [view.here[recipe].answers(view.group.index) for recipe in (view.base, view.recipe)]
    rows = [
        (f" {letter(place)} ", [
            (signed(a.advantage), signed(b.advantage)),
            (share(a.clipped), share(b.clipped)),
            (signed(a.push, digits), signed(b.push, digits)),
        ])
        for place, a, b in zip(view.places, *answers, strict=True)
    ]  # fmt: skip
    shown = height - 1 - (len(rows) >= height)
    first, end = window([1] * len(rows), view.row, shown)
    lines = _before_after(("advantage", "clipped", "push in the loss"), rows[first:end],
                          view.row - first, width, palette)  # fmt: skip
    more = f"… and {len(rows) - end + first} more answers (J K)"
    return [*lines, [(more, style(palette.label))]] if end - first < len(rows) else lines


def _before_after(
    names: Sequence[str], rows: Sequence[tuple[str, Sequence[tuple[str, str]]]],
    chosen: int | None, width: int, palette: Palette,
) -> list[Line]:  # fmt: skip
    """A table whose cells are `before → after`."""
    widths = ((8, 7),) * 3 if width >= 57 else ((6, 5), (4, 4), (7, 7))
    columns = [pad(name, sum(both) + 3, "^") for name, both in zip(names, widths, strict=True)]
    indent = len(rows[0][0]) if rows else 0
    lines: list[Line] = [[(" " * indent + "".join(columns), style(palette.label))]]
    for place, (name, pairs) in enumerate(rows):
        back = palette.cursor if place == chosen else palette.paper
        plain, dim = style(palette.text, back), style(palette.label, back)
        line: Line = [(name, plain)]
        for (before, after), (left, right) in zip(pairs, widths, strict=True):
            look = dim if before == after else style(palette.accent, back, bold=True)
            line += [(pad(before, left, ">"), plain), (" → ", dim), (pad(after, right), look)]
        lines.append(_filled(line, width, back))
    return lines


def _filled(line: Line, width: int, back: int) -> Line:
    return [*line, (" " * max(0, width - cells(line)), style(None, back))]


def token_lines(view: LabView, width: int, height: int, palette: Palette) -> list[Line]:
    """The chosen answer, and the others as far as there is room for each as a whole.

    Under a text is each token's push, before and after, on one scale for the group.
    """
    assert view.group is not None
    both = [view.here[recipe].pushes(view.group.index) for recipe in (view.base, view.recipe)]
    largest = max(float(abs(push).max()) for push, _ in both)
    lines: list[Line] = []
    for row in sorted(range(len(view.places)), key=lambda row: row != view.row):
        pushes = [(push[row], stopped[row]) for push, stopped in both]
        found = _answer_lines(view, row, pushes, largest, width, palette)
        if row == view.row:
            lines = list(chain.from_iterable(_whole(found, height)))
        elif len(lines) + 1 + sum(map(len, found)) <= height:
            lines += [[], *chain.from_iterable(found)]
        else:
            break
    return lines


def _whole(found: Sequence[list[Line]], height: int) -> Iterator[list[Line]]:
    """The first lines of text that fit together with their bars."""
    for one in found:
        height -= len(one)
        if height < 0:
            return
        yield one


def _answer_lines(
    view: LabView, row: int, pushes: Sequence[tuple[Any, Any]], largest: float, width: int,
    palette: Palette,
) -> list[list[Line]]:  # fmt: skip
    """Each line of an answer's tokens with the bars of their pushes, before and after."""
    assert view.group is not None
    replies = view.rows[view.group.index, view.places[row]].replies
    found: list[list[Line]] = []
    lead = f"{letter(view.places[row]):<6}"
    for line in lay_out(view.texts(row), max(2, width - 6)):
        looks = [palette.label if p.token in replies else palette.text for p in line]
        parts = zip(line, looks, strict=True)
        lines: list[Line] = [
            [(lead, style(palette.label)), *((p.text, style(look)) for p, look in parts)]
        ]
        found.append(lines)
        lead = " " * 6
        if all(p.token in replies for p in line):
            continue
        for name, (push, stopped) in zip(("was   ", "would "), pushes, strict=True):
            bars: Line = [(name, style(palette.label))]
            bars += [
                _bar(float(push[p.token]), bool(stopped[p.token]), p.cells, largest, palette)
                if p.token < len(push) else (" " * p.cells, None)
                for p in line
            ]  # fmt: skip
            lines.append(bars)
    return found


def _bar(
    push: float, stopped: bool, cells: int, largest: float, palette: Palette
) -> tuple[str, Any]:
    if not push and not stopped:
        return BARS[0] * cells, style(palette.guide)
    if not push:
        return "‾" * cells, style(palette.of_series("clip"))
    size = abs(push) / largest
    shade = (LEAST + (1 - LEAST) * size) * (1 if push > 0 else -1)
    look = style(palette.of_advantage(shade, 1.0), underline=stopped)
    return BARS[round(7 * size)] * cells, look


def lack_lines(view: LabView, width: int, palette: Palette) -> list[Line]:
    """Which numbers are missing, and how they are recorded."""
    now = view.effect(view.recipe)
    if now is None or not now.lacks:
        return []
    if not now.tokens:
        return [[(text, style(palette.warn))] for text in wrap(NO_TOKENS, width, 3)]
    text = " ".join(LACKS[name] for name in LACKS if name in now.lacks)
    return [[(part, style(palette.label))] for part in wrap(text, width, 2)]


def notes(view: LabView, width: int, most: int, palette: Palette) -> list[Line]:
    """What the numbers say exactly, and what they cannot say."""
    was, now = view.effect(view.base), view.effect(view.recipe)
    parts = []
    if names := undetermined(view.recipe, view.base):
        parts.append(f"Not in these numbers: {', '.join(names)}; the updates are the run's.")
    if view.recipe.pays_in_reward:
        parts.append("The KL is in the rewards of this recipe, not in its loss.")
    exact = "What is shown is exact" if parts or (now and now.lacks) else "Exact"
    parts.append(f"{exact} for the stored answers, by the loss itself, in each step's last pass.")
    parts.append("Later steps would have had another policy and other answers.")
    if view.left_out and view.scope == "steps":
        count = len(view.steps)
        parts.append(f"{count} of {count + view.left_out} steps are read, evenly spread.")
    if was and was.tokens and was.highest == was.lowest:
        parts.append("Every ratio is 1: with one pass, no bound is reached.")
    elif was and was.tokens:
        parts.append(
            f"The run's ratios are from {short(was.lowest, 3)} to {short(was.highest, 3)}."
        )
    return [[(text, style(palette.label))] for text in wrap(" ".join(parts), width, most)]
