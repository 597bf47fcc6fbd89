"""All answers of a group, one below the other: their beginnings, with bars where there is room."""

from grpo_tui.app.inspector.dialogue import flow
from grpo_tui.app.inspector.groups import letter
from grpo_tui.app.inspector.heat import Heat
from grpo_tui.app.inspector.layout import lay_out
from grpo_tui.app.text.numbers import BARS, short, signed
from grpo_tui.app.text.safe_text import clip, safe
from grpo_tui.app.tui.looks.colours import Palette, style
from grpo_tui.app.tui.screens.rollouts.lines import cells, mark, window
from grpo_tui.app.tui.screens.rollouts.view import View
from grpo_tui.app.tui.widgets.lanes import end_mark
from grpo_tui.app.tui.widgets.panel import Line, Span
from grpo_tui.experiments.values import RolloutView


def sibling_lines(view: View, width: int, rows: int, palette: Palette) -> list[Line]:
    """The group's answers for comparison; each has its tokens' bars if there is room for all."""
    group = view.chosen
    if group is None or rows < 3 or len(group.rollouts) < 2:
        return []
    barred = 2 * len(group.rollouts) < rows and not any(one.spans for one in group.rollouts)
    first, end = window([1] * len(group.rollouts), view.answer, rows - 1)
    words = "all answers to this prompt"
    if end - first < len(group.rollouts):
        words = f"answers {letter(first)} to {letter(end - 1)} of {len(group.rollouts)}"
    lines: list[Line] = [[(words, style(palette.label))]]
    for place in range(first, end):
        one = group.rollouts[place]
        heat = view.heat_of(one) if barred else None
        if heat is None:
            lines.append(_line(one, place == view.answer, width, palette))
        else:
            lines += _with_bars(view, place, heat, width, palette)
    return lines


def _lead(one: RolloutView, chosen: bool, palette: Palette) -> Line:
    """An answer's letter, push and reward."""
    back = palette.cursor if chosen else palette.paper
    head = f"{letter(one.index)} "
    if one.advantage is not None:
        head += f"{mark(one.advantage)}{signed(one.advantage):>6} "
    text = style(palette.headline if chosen else palette.text, back)
    push = style(palette.of_push(one.advantage), back)
    return [(head, push), (f"{short(one.reward):>5}  ", text)]


def _line(one: RolloutView, chosen: bool, width: int, palette: Palette) -> Line:
    """The beginning of an answer, or the end of a dialogue."""
    back = palette.cursor if chosen else palette.paper
    text = style(palette.headline if chosen else palette.text, back)
    line = _lead(one, chosen, palette)
    room = max(1, width - cells(line))
    cut = end_mark(one).removesuffix("▪")
    body = [(clip(" ".join(safe(one.text, " ").split()), room - len(cut)), False)]
    if one.spans:
        body = flow(one.text, one.spans, room - len(cut), 1)[0]
    heard = style(palette.label, back)
    line += [(part, heard if is_reply else text) for part, is_reply in body]
    line.append((cut, style(palette.warn, back)))
    return [*line, (" " * max(0, width - cells(line)), text)]


def _with_bars(view: View, place: int, heat: Heat, width: int, palette: Palette) -> list[Line]:
    """An answer's first line of tokens, and their bars below it."""
    assert view.chosen is not None
    one, chosen = view.chosen.rollouts[place], place == view.answer
    line = _lead(one, chosen, palette)
    lead = cells(line)
    texts = view.texts_of(one)
    first, *more = lay_out(texts[:width], max(2, width - lead - 1))
    text = style(palette.headline if chosen else palette.text,
                 palette.cursor if chosen else palette.paper)  # fmt: skip
    line += [(piece.text, text) for piece in first]
    line += [("…" if more or len(texts) > width else "", text)]
    bars = [bar(heat, piece.token, piece.cells, palette) for piece in first]
    return [[*line, (" " * max(0, width - cells(line)), text)], [(" " * lead, None), *bars]]


def bar(heat: Heat | None, token: int, cells: int, palette: Palette) -> Span:
    """The bar under one token: its height is the shade's size, its colour the sign."""
    shade = heat.shades[token] if heat is not None and token < len(heat.shades) else None
    if heat is None or shade is None:
        return " " * cells, None
    if shade == 0:
        return BARS[0] * cells, style(palette.guide)
    height = max(0, min(7, round(abs(shade) * 7)))
    signed = shade if heat.signed else abs(shade)
    return BARS[height] * cells, style(palette.of_advantage(signed, 1.0))
