"""What the Compare screen says on top: which setting is better, and what differs."""

import math

from app.text.comparison import value_text
from app.text.comparison import verdict as verdict_of
from app.text.numbers import seconds, short
from app.tui.screens.compare.view import View
from grpo_engine.metrics import spec


def verdict(view: View) -> str:
    """Which setting is better and with what confidence, or why that cannot be said."""
    found, chosen = view.comparison, view.chosen
    if found is None or chosen is None:
        return ""
    if len(found.runs) == 1:
        return f"Only {view.name(found.runs[0])} is shown. + adds runs to compare it with."
    said = verdict_of(found, chosen.id, view.metric)
    if said:
        return said
    own = [note for note in found.notes if chosen.name in note]
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
