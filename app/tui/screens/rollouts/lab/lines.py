"""The lab's lines: the choices, the answers before and after, and one answer's tokens twice."""

from typing import Any

from app.inspector.groups import letter
from app.inspector.heat import LEAST
from app.inspector.lab import KNOBS, WhatIf, differences
from app.inspector.layout import lay_out
from app.inspector.values import TokenTerm
from app.text.numbers import BARS, share, short, signed
from app.text.safe_text import cell_len, pad, wrap
from app.tui.looks.colours import Palette, style
from app.tui.widgets.panel import Line
from grpo_engine.config.recipes import SETTINGS, Recipe


def value_text(value: Any) -> str:
    """Format a choice's value; `off` if there is none."""
    if value is None:
        return "off"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


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


def answers_lines(
    was: WhatIf, now: WhatIf, chosen: int, width: int, palette: Palette
) -> list[Line]:
    """One row per answer: advantage, clipped share and push, before and after."""
    label = style(palette.label)
    roomy = width >= 57
    left, right = (8, 7) if roomy else (6, 5)
    names = ("advantage", "tokens clipped", "push in the loss")
    names = names if roomy else ("advantage", "clipped", "push")
    head = "   " + "".join(pad(name, left + right + 3, "^") for name in names)
    lines: list[Line] = [[(head, label)]]
    for place, (a, b) in enumerate(zip(was.answers, now.answers, strict=True)):
        back = palette.cursor if place == chosen else palette.paper
        plain, dim = style(palette.text, back), style(palette.label, back)

        def cell(
            before: str, after: str, dim: Any = dim, plain: Any = plain, back: int = back
        ) -> Line:
            same = before == after
            look = dim if same else style(palette.accent, back, bold=True)
            return [(pad(before, left, ">"), plain), (" → ", dim), (pad(after, right), look)]

        lines.append(
            [
                (f" {letter(place)} ", plain),
                *cell(signed(a.advantage), signed(b.advantage)),
                *cell(share(a.clipped), share(b.clipped)),
                *cell(signed(a.push, 2 + roomy), signed(b.push, 2 + roomy)),
            ]
        )
    total = f"   clipped in the group: {share(was.clipped)} → {share(now.clipped)}"
    return [*lines, [], [(total, label)]]


def token_lines(
    texts: tuple[str, ...], was: tuple[TokenTerm, ...], now: tuple[TokenTerm, ...],
    width: int, height: int, palette: Palette,
) -> list[Line]:  # fmt: skip
    """One answer: under its text each token's push, before and after."""
    largest = max((abs(t.contribution) for t in (*was, *now)), default=0.0)
    lines: list[Line] = []
    for line in lay_out(texts, max(2, width - 6)):
        if len(lines) + 3 > height:
            break
        lines.append([("      ", None), *((p.text, style(palette.text)) for p in line)])
        for name, terms in (("was   ", was), ("would ", now)):
            bars: Line = [(name, style(palette.label))]
            bars += [_bar(terms, p.token, p.cells, largest, palette) for p in line]
            lines.append(bars)
    return lines


def _bar(
    terms: tuple[TokenTerm, ...], token: int, cells: int, largest: float, palette: Palette
) -> tuple[str, Any]:
    if token >= len(terms) or not largest:
        return BARS[0] * cells, style(palette.guide)
    term = terms[token]
    size = abs(term.contribution) / largest
    if term.side != "free":
        return "‾" * cells, style(palette.of_series("clip"))
    shade = (LEAST + (1 - LEAST) * size) * (1 if term.contribution > 0 else -1)
    return BARS[round(7 * size)] * cells, style(palette.of_advantage(shade, 1.0))


def legend(was: WhatIf, now: WhatIf, width: int, palette: Palette) -> list[Line]:
    """Explain the comparison in two sentences."""
    text = (
        "The same answers and the same log-probabilities, scored by another recipe; ‾ marks tokens "
        "that a bound stops. Later steps would of course have sampled other answers."
    )
    if now.recipe.beta and any(t.kl is None for answer in now.terms for t in answer):
        text += " Reference log-probabilities were not recorded, so the anchor reads 0."
    ratios = [t.ratio for answer in was.terms for t in answer] or [1.0]
    text += f" Ratios of this group go from {short(min(ratios), 3)} to {short(max(ratios), 3)}."
    return [[(part, style(palette.label))] for part in wrap(text, width, 4)]
