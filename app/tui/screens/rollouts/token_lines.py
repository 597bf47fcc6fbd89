"""The numbers of the token under the cursor, explained in a few lines."""

import math
from bisect import bisect_left
from collections.abc import Sequence

from rich.style import Style

from grpo_engine.config.recipes import Recipe
from grpo_tui.app.inspector.layout import EMPTY_SIGN
from grpo_tui.app.inspector.terms import inside
from grpo_tui.app.inspector.values import TokenTerm
from grpo_tui.app.inspector.words import slope_parts, stopped, why, written_out
from grpo_tui.app.text.numbers import short
from grpo_tui.app.text.safe_text import cell_len, clip, safe, wrap
from grpo_tui.app.tui.looks.colours import Palette, style
from grpo_tui.app.tui.widgets.panel import Line
from grpo_tui.experiments.values import TokenRow

INTERVAL, TAIL = 20, 6
UNBOUNDED = 1e6
MOST_NAMED = 3


def token_lines(
    row: TokenRow, text: str, index: int, terms: Sequence[Sequence[TokenTerm]],
    recipe: Recipe, max_length: int, width: int, palette: Palette,
) -> list[Line]:  # fmt: skip
    """Probabilities, ratio, explanation, term and passes; numbers are of the last pass."""
    label, plain = style(palette.label), style(palette.text)
    own = row.own
    title = f"╶ token {bisect_left(own, index) + 1} of {len(own)} “{safe(text) or EMPTY_SIGN}” ╴"
    lines: list[Line] = [[(clip(title, width), style(palette.headline))]]
    lines.append(_probabilities(row, index, width, palette))
    seen = [one[index] for one in terms if index < len(one)]
    if not seen:
        return lines
    last = seen[-1]
    lines.append(_ratio_line(last, width, palette))
    lines += _labelled("why", why(last, recipe, first_pass=len(seen) == 1), width, label, plain)
    if slope := slope_parts(last):
        lines += _labelled("slope", slope, width, label, plain)
    term = written_out(
        last, recipe, row.updates[-1], length=sum(inside(row)), max_length=max_length
    )
    lines += _labelled("term", term, width, label, plain)
    passes = "   ".join(f"{n}: ratio {short(one.ratio, 3)}" for n, one in enumerate(seen, 1))
    lines += _labelled("passes", passes, width, label, plain)
    return lines


def _probabilities(row: TokenRow, index: int, width: int, palette: Palette) -> Line:
    name = "reference" if width >= 58 else "ref"
    sampled = [] if row.old else [("sampled", row.sampler)]
    stages = [(name, row.reference), *sampled, ("old", row.old)]
    if row.passes:
        stages.append(("new", row.passes[-1]))
    stages.append(("after", row.after))
    known = [(name, values[index]) for name, values in stages if index < len(values)]
    label, number = style(palette.label), style(palette.headline)
    for digits, gap in ((3, "  "), (3, " "), (2, " "), (1, " ")):
        line: Line = [("probability" if width >= 64 else "prob. ", label)]
        for name, value in known:
            line += [(f"{gap}{name} ", label), (probability(value, digits), number)]
        if sum(cell_len(text) for text, _ in line) <= width:
            break
    return line


def probability(logprob: float, digits: int = 3) -> str:
    """exp of a log-probability, with more digits if it is near 1: `.034`, `.9987`."""
    p = math.exp(min(0.0, logprob))
    return f"{p:.4f}"[1:] if 0.99995 > p >= 0.0995 else short(p, digits)


def _ratio_line(term: TokenTerm, width: int, palette: Palette) -> Line:
    """The ratio as a diamond on its interval: `┈.8├────┼────┤1.2┈◆  1.35 CLIPPED high`."""
    label, headline = style(palette.label), style(palette.headline)
    words = {"low": " CLIPPED low", "high": " CLIPPED high", "ceiling": " AT THE CEILING"}
    end = words.get(term.side, "")
    alarm = style(palette.of_series("clip"), bold=True)
    if term.high >= UNBOUNDED or term.low <= 1 / UNBOUNDED:
        bounds = "no bounds" if term.high >= UNBOUNDED else f"at most {short(term.high)}"
        ratio = short(term.ratio, 3)
        return [("ratio   ", label), (ratio, headline), (f"  {bounds}", label), (end, alarm)]
    inner = max(9, min(INTERVAL, width - 2 * TAIL - 38))
    span = (term.high - term.low) or 1.0
    tails = ["┈" * TAIL, "┈" * TAIL]
    marks = list("├" + "─" * (inner - 2) + "┤")
    marks[round((1.0 - term.low) / span * (inner - 1)) % inner] = "┼"
    track = [*tails[0], short(term.low), *marks, short(term.high), *tails[1]]
    track[_place(term, span, inner)] = "◆"
    line: Line = [("ratio   ", label)]
    line += [(t, (alarm if end else headline) if t == "◆" else label) for t in track]
    return [*line, ("  ", None), (short(term.ratio, 3), headline), (end, alarm)]


def _place(term: TokenTerm, span: float, inner: int) -> int:
    """The diamond's position: inside the interval, or in a tail that covers half its span."""
    if term.ratio < term.low:
        return round((1 - min(1.0, (term.low - term.ratio) / span * 2)) * (TAIL - 1))
    if term.ratio > term.high:
        away = min(1.0, (term.ratio - term.high) / span * 2)
        return TAIL + inner + 2 + round(away * (TAIL - 1))
    return TAIL + 1 + round((term.ratio - term.low) / span * (inner - 1))


def _labelled(name: str, text: str, width: int, label: Style, plain: Style) -> list[Line]:
    parts = wrap(text, max(8, width - 8), 3)
    heads = [name, *[""] * len(parts)]
    return [
        [(f"{head:<8}", label), (part, plain)] for head, part in zip(heads, parts, strict=False)
    ]


def standouts(
    row: TokenRow, texts: Sequence[str], terms: Sequence[TokenTerm], recipe: Recipe
) -> list[tuple[str, str]]:
    """Notable tokens of an answer: the clipped ones, and the one furthest from the reference."""
    found, own = [], row.own

    def name(token: int) -> str:
        text = safe(texts[token]) if token < len(texts) else ""
        return f"{bisect_left(own, token) + 1} “{text or EMPTY_SIGN}”"

    if terms:
        held = [(t, terms[t]) for t in own if terms[t].side != "free"]
        sides = {"low": "low", "high": "high", "ceiling": "at the ceiling"}
        listed = ", ".join(f"{name(t)} {sides[term.side]}" for t, term in held[:MOST_NAMED])
        more = f" and {len(held) - MOST_NAMED} more" if len(held) > MOST_NAMED else ""
        first = held[0][1] if held else None
        reason = ""
        if first is not None:
            reason = f"; {stopped(first, recipe) or why(first, recipe, first_pass=False)}"
        found.append(("clipped", (listed or "no token") + more + reason))
    policy = row.after or (row.passes[-1] if row.passes else row.old)
    if row.reference and len(policy) == len(row.reference):
        gaps = [p - r for p, r in zip(policy, row.reference, strict=True)]
        far = max(own, key=lambda t: abs(gaps[t]))
        times = short(math.exp(min(50.0, abs(gaps[far]))), 3)
        ratio = f"{times} times" if gaps[far] > 0 else f"1/{times}"
        where = ": no token" if times == "1" else f" at {name(far)}: {ratio} as likely"
        found.append(("far", f"from the reference{where}"))
    return found
