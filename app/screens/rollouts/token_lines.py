"""The numbers of the token under the cursor, told in a few lines."""

import math
from collections.abc import Sequence

from rich.style import Style

from app.inspector.values import TokenTerm, UpdateTotals
from app.inspector.words import why, written_out
from app.numbers import short
from app.palette import Palette, style
from app.safe_text import clip, safe, wrap
from app.widgets.panel import Line
from experiments.values import TokenRow
from grpo_engine.recipes import Recipe

TRACK = 28
UNBOUNDED = 1e6


def token_lines(
    row: TokenRow, text: str, index: int, terms: Sequence[Sequence[TokenTerm]],
    recipe: Recipe, totals: UpdateTotals, width: int, palette: Palette, missing: str = "",
) -> list[Line]:  # fmt: skip
    """Probabilities, ratio on its interval, why, the term, and the passes; the last pass counts."""
    label, plain = style(palette.label), style(palette.text)
    count = len(row.ids)
    title = f"╶ token {index + 1} of {count} “{safe(text)}” ╴"
    lines: list[Line] = [[(clip(title, width), style(palette.headline))]]
    lines += _probabilities(row, index, palette)
    seen = [one[index] for one in terms if index < len(one)]
    if not seen:
        return lines + [[(part, label)] for part in wrap(missing, width, 2) if part]
    last = seen[-1]
    lines.append(_ratio_line(last, width, palette))
    lines += _labelled("why", why(last, recipe, first_pass=len(seen) == 1), width, label, plain)
    lines += _labelled("term", written_out(last, recipe, totals, count), width, label, plain)
    passes = "   ".join(f"{n}: ratio {short(one.ratio, 3)}" for n, one in enumerate(seen, 1))
    lines += _labelled("passes", passes, width, label, plain)
    return lines


def _probabilities(row: TokenRow, index: int, palette: Palette) -> list[Line]:
    label, number = style(palette.label), style(palette.headline)
    stages = [("reference", row.reference), ("old", row.old)]
    if row.passes:
        stages.append(("new", row.passes[-1]))
    stages.append(("after", row.after))
    line: Line = [("probability", label)]
    for name, values in stages:
        if index < len(values):
            line += [(f"  {name} ", label), (probability(values[index]), number)]
    return [line]


def probability(logprob: float) -> str:
    """exp of a log-probability, with more digits where it is near 1: `.034`, `.9987`."""
    p = math.exp(min(0.0, logprob))
    return f"{p:.4f}"[1:] if 0.99995 > p >= 0.0995 else short(p, 3)


def _ratio_line(term: TokenTerm, width: int, palette: Palette) -> Line:
    """The ratio as a diamond on its interval: `.8├────┼────┤1.2┈┈◆  1.35 CLIPPED high`."""
    label, headline = style(palette.label), style(palette.headline)
    words = {"low": " CLIPPED low", "high": " CLIPPED high", "ceiling": " AT THE CEILING"}
    end = words.get(term.side, "")
    alarm = style(palette.of_series("clip"), bold=True)
    if term.high >= UNBOUNDED or term.low <= 1 / UNBOUNDED:
        bounds = "no bounds" if term.high >= UNBOUNDED else f"at most {short(term.high)}"
        ratio = short(term.ratio, 3)
        return [("ratio   ", label), (ratio, headline), (f"  {bounds}", label), (end, alarm)]
    track = min(TRACK, max(12, width - 38))
    span = (term.high - term.low) or 1.0
    left, right = term.low - span * 0.5, term.high + span * 0.5

    def place(value: float) -> int:
        share = (value - left) / (right - left)
        return max(0, min(track - 1, round(share * (track - 1))))

    marks = ["┈"] * track
    for cell in range(place(term.low), place(term.high) + 1):
        marks[cell] = "─"
    marks[place(term.low)], marks[place(term.high)], marks[place(1.0)] = "├", "┤", "┼"
    diamond = place(term.ratio)
    return [
        (f"ratio   {short(term.low)} ", label),
        ("".join(marks[:diamond]), label),
        ("◆", alarm if end else headline),
        ("".join(marks[diamond + 1 :]), label),
        (f" {short(term.high)}  ", label),
        (short(term.ratio, 3), headline),
        (end, alarm),
    ]


def _labelled(name: str, text: str, width: int, label: Style, plain: Style) -> list[Line]:
    parts = wrap(text, max(8, width - 8), 3)
    heads = [name, *[""] * len(parts)]
    return [
        [(f"{head:<8}", label), (part, plain)] for head, part in zip(heads, parts, strict=False)
    ]
