"""One sentence on which run is better and with what confidence, and one on what differs."""

import json
import math

from app.text.numbers import MINUS, seconds, short
from app.tui.screens.compare.view import View
from experiments.compare.values import PairedTest
from grpo_engine.metrics import spec

SURE = 0.05
MODES = {"greedy": "greedy answers", "sampled": "sampled answers"}


def probability(p: float) -> str:
    """Format a p-value: `p = .031`, `p < .001`."""
    return "p < .001" if p < 0.001 else f"p = {p:.3f}".replace("0.", ".", 1)


def points(share: float, sign: bool = False) -> str:
    """Format a difference of shares in percentage points: `+3.1`, `−12`."""
    value = 100 * share
    text = f"{abs(value):.1f}".removesuffix(".0")
    if value < 0 and text != "0":
        return MINUS + text
    return f"+{text}" if sign and value > 0 else text


def test_sentence(test: PairedTest, view: View) -> str:
    """The paired test in words."""
    run, base = view.name_of(test.run), view.name_of(test.baseline)
    kind = MODES.get(test.mode, f"{test.mode} answers")
    tests = view.comparison.tests if view.comparison else ()
    where = f"on the same {test.problems} held-out problems"
    where += f", {kind}" if len({other.mode for other in tests}) > 1 else ""
    how = f"{probability(test.p_value)}, {test.method}"
    if test.difference == 0:
        return f"{run} and {base} get as many right {where}; {how}."
    better, worse = (run, base) if test.difference > 0 else (base, run)
    size = f"{points(abs(test.difference), True)} points"
    if test.low is not None and test.high is not None:
        ends = (test.low, test.high) if test.difference > 0 else (-test.high, -test.low)
        size += f" (95 %: {points(ends[0], True)} to {points(ends[1], True)})"
    if test.p_value < SURE:
        return f"{better} is better than {worse}: {size} {where}; {how}."
    return f"No significant difference: {size} for {better} over {worse} {where}; {how}."


def verdict(view: View) -> str:
    """Which run is better and with what confidence, or why that cannot be said."""
    found = view.comparison
    if found is None:
        return ""
    if len(found.runs) == 1:
        return f"Only {view.name(found.runs[0])} is shown. + adds runs to compare it with."
    test = view.test()
    if test is not None:
        many = len(found.tests)
        more = f" One of {many} tests: 1 in 20 is below .05 by chance." if many > 2 else ""
        return test_sentence(test, view) + more
    own = [note for note in found.notes if view.chosen and view.chosen.name in note]
    reason = next(
        iter(own), "they have no held-out answers to the same problems (evaluation.every)"
    )
    return f"Which is better cannot be tested: {reason}. {leader(view)}".strip()


def leader(view: View) -> str:
    """The run with the best value of the chosen metric, if the metric has a direction."""
    key = view.metric
    if not key or spec(key).direction == "none":
        return ""
    best = [
        (cell.best, run)
        for run in view.runs
        if (cell := view.cell(key, run.id)) and cell.best is not None
        and math.isfinite(cell.best)
    ]  # fmt: skip
    if len(best) < 2:
        return ""
    sign = 1 if spec(key).direction == "up" else -1
    ordered = sorted(best, key=lambda pair: -sign * pair[0])
    (top, run), (other, second) = ordered[0], ordered[1]
    if top == other:
        return f"Best {spec(key).label} is {short(top)} for both." if len(best) == 2 else ""
    return (
        f"Best {spec(key).label}: {view.name(run)} {short(top)}, "
        f"then {view.name(second)} {short(other)}."
    )


def value_text(value: object) -> str:
    """Format a setting's value for people."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        text = f"{value:g}"
        return text.replace("-", MINUS)
    return json.dumps(value, ensure_ascii=False)


def differences(view: View, most: int = 4) -> str:
    """Describe what differs in one line."""
    found = view.comparison
    if found is None or len(found.runs) < 2:
        return ""
    if not found.differing:
        return "All settings are the same: what differs is chance or the code."
    parts = []
    for item in found.differing[:most]:
        values = list(dict.fromkeys(value_text(value) for value in item.values))
        some = ", ".join(values[:4]) + (" …" if len(values) > 4 else "")
        parts.append(f"{item.path} ({some})")
    rest = len(found.differing) - most
    return "Differ in " + ", ".join(parts) + (f" and {rest} more" if rest > 0 else "") + "."


def place_text(axis: str, x: float) -> str:
    """Describe the crosshair's position."""
    if axis == "step":
        return f"step {x:.0f}"
    return f"{short(x)} tokens" if axis == "tokens" else seconds(x)
