"""A comparison of runs as JSON, rows and sentences, for the command line and the screen."""

import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from app.text.numbers import MINUS

if TYPE_CHECKING:
    from experiments.compare.values import Comparison, Evaluated, PairedTest
    from experiments.values import RunSummary

SURE = 0.05
GREEDY = "eval/greedy/"


def comparison_json(result: "Comparison", all_settings: bool = False) -> dict[str, Any]:
    """Return the comparison as JSON, keyed by run id."""
    ids = [run.id for run in result.runs]
    return {
        "runs": [{"id": run.id, "name": run.name, "status": run.status, "seed": run.seed,
                  "step": run.step, "tokens": run.tokens, "elapsed": run.elapsed}
                 for run in result.runs],
        "baseline": result.baseline,
        "at": result.at or None,
        "settings": {item.path: dict(zip(ids, item.values, strict=True))
                     for item in result.differing},
        "same": dict(result.same) if all_settings else None,
        **({"by_recipe": {item.path: dict(zip(ids, item.values, strict=True))
                          for item in result.by_recipe}} if all_settings else {}),
        "metrics": {
            item.key: {
                "direction": item.direction,
                "runs": {run: dataclasses.asdict(cell)
                         for run, cell in zip(ids, item.cells, strict=True)},
            }
            for item in result.metrics
        },
        "seeds": [dataclasses.asdict(group) for group in result.seeds],
        "tests": [_test_json(test) for test in result.tests],
        "notes": list(result.notes),
    }  # fmt: skip


def _test_json(test: "PairedTest") -> dict[str, Any]:
    """Return a test as JSON; one of single runs has the keys that earlier versions gave it."""
    tree = dataclasses.asdict(test)
    if len(test.own.runs) == len(test.other.runs) == 1:
        del tree["own"], tree["other"]
    return tree


def flat_rows(result: "Comparison", all_settings: bool = False) -> list[dict[str, Any]]:
    """Return the comparison as rows: kind, key, field, and a column per run."""
    ids = [run.id for run in result.runs]
    rows: list[dict[str, Any]] = [
        {"kind": "run", "key": "name", "of": "", **{run.id: run.name for run in result.runs}}
    ]
    rows += [
        {"kind": kind, "key": item.path, "of": "", **dict(zip(ids, item.values, strict=True))}
        for kind, items in (
            ("setting", result.differing), ("recipe", result.by_recipe if all_settings else ())
        )
        for item in items
    ]  # fmt: skip
    if all_settings:
        rows += [
            {"kind": "same", "key": path, "of": "", **dict.fromkeys(ids, value)}
            for path, value in result.same.items()
        ]
    for item in result.metrics:
        for name in ("best", "best_step", "last", "last_step", "at", "at_step", "delta_best",
                     "delta_last", "delta_at"):  # fmt: skip
            values = [getattr(cell, name) for cell in item.cells]
            if any(value is not None for value in values):
                cells = dict(zip(ids, values, strict=True))
                rows.append({"kind": "metric", "key": item.key, "of": name, **cells})
    return rows


# -- sentences ----------------------------------------------------------------------------------


def verdict(found: "Comparison", chosen: str = "", metric: str = "") -> str:
    """Say which setting is better and with what confidence; empty without a test.

    It is the test of the chosen run's setting, of the evaluations that `metric` is from.
    """
    test = test_of(found, chosen, metric)
    if test is None:
        return ""
    many = sum(other.mode == test.mode for other in found.tests)
    more = f" One of {many} tests: 1 in 20 is below .05 by chance." if many > 2 else ""
    return sentence_of(test, found) + more


def test_of(found: "Comparison", chosen: str, metric: str) -> "PairedTest | None":
    """Return the test of a run's setting, or of the first one if that is the baseline's.

    Greedy answers count where the metric is of greedy evaluations, else sampled ones if known.
    """
    first = "greedy" if metric.startswith(GREEDY) else "sampled"
    tests = sorted(found.tests, key=lambda test: test.mode != first)
    own = [test for test in tests if chosen in test.own.runs]
    based = not chosen or any(chosen in test.other.runs for test in tests)
    return next(iter(own), next(iter(tests), None) if based else None)


def sentence_of(test: "PairedTest", found: "Comparison") -> str:
    """Put a paired test into words: the result, the evaluation, the method."""
    own, other = (setting_name(found, side.runs, inline=True) for side in (test.own, test.other))
    up = test.difference > 0
    sides = (test.own, test.other) if up else (test.other, test.own)
    where = f"on {evaluation_name(test, sides)}"
    how = f"{probability(test.p_value)}, {test.method}"
    if test.difference == 0:
        return f"{own} and {other} get as many right, {percent(test.own.share)}%, {where}; {how}."
    better, worse = (own, other) if up else (other, own)
    ends = (test.low, test.high) if up else (-test.high, -test.low)
    shares = sorted((test.own.share, test.other.share), reverse=True)
    size = (
        f"{points(abs(test.difference))} points (95%: {points(ends[0])} to {points(ends[1])}), "
        f"{percent(shares[0])} and {percent(shares[1])}%,"
    )
    spread = _spread(sides)
    if test.p_value < SURE:
        return f"{better} is better than {worse}: {size} {where}; {how}.{spread}"
    return f"No significant difference: {size} for {better} over {worse} {where}; {how}.{spread}"


def _spread(sides: "Sequence[Evaluated]") -> str:
    """Say how far the seeds of each setting lie apart, since the interval leaves that out."""
    if all(len(side.runs) < 2 for side in sides):
        return ""
    ranges = [
        f"{percent(min(side.shares))}–{percent(max(side.shares))}" if len(side.runs) > 1
        else percent(side.share)
        for side in sides
    ]  # fmt: skip
    return f" By seed: {ranges[0]} and {ranges[1]}%."


def evaluation_name(test: "PairedTest", sides: "Sequence[Evaluated]") -> str:
    """Name the evaluations of a test: the problems, greedy or sampled answers, each side's step."""
    kind = "greedy answers"
    if test.mode != "greedy":
        counts = list(dict.fromkeys(side.samples for side in sides))
        kind = (
            f"sampled {' and '.join(map(str, counts))} times" if counts != [1] else "sampled once"
        )
    ranges = [
        str(min(side.steps)) + (f"–{max(side.steps)}" if len(set(side.steps)) > 1 else "")
        for side in sides
    ]
    at = " and ".join(dict.fromkeys(ranges))
    return f"{test.problems} held-out problems, {kind}, step{'s' * (not at.isdigit())} {at}"


def setting_name(found: "Comparison", runs: Sequence[str], *, inline: bool = False) -> str:
    """Name runs by the settings they share and others do not: `beta 0.4, 2 seeds`; one by name.

    In a sentence it is `beta 0.4 (2 seeds)`.
    """
    if len(runs) == 1:
        return run_name(next(run for run in found.runs if run.id == runs[0]), found.runs)
    places = [place for place, run in enumerate(found.runs) if run.id in runs]
    paths = [item.path for item in found.differing]
    leaves = [path.rpartition(".")[2] for path in paths]
    parts = [
        f"{leaf if leaves.count(leaf) == 1 else item.path} {value_text(item.values[places[0]])}"
        for item, leaf in zip(found.differing, leaves, strict=True)
        if item.path != "seed"
    ]
    count = f"{len(runs)} seeds"
    if inline and parts:
        return f"{', '.join(parts)} ({count})"
    return ", ".join([*parts, count])


def run_name(run: "RunSummary", runs: "Sequence[RunSummary]") -> str:
    """Return a run's name, followed by its id if another run has the same name or it has none."""
    unique = run.name and sum(other.name == run.name for other in runs) == 1
    return run.name if unique else f"{run.name} {run.id}".strip()


def metric_name(key: str) -> str:
    """Return a metric's key, with `(sampled)` where greedy answers have a metric of their own."""
    sampled = key.startswith("eval/") and not key.startswith(GREEDY)
    return f"{key} (sampled)" if sampled else key


def probability(p: float) -> str:
    """Format a p-value: `p = .031`, `p < .001`; never rounded up to the limit of .05."""
    if p < 0.001:
        return "p < .001"
    text = f"{p:.3f}"
    for digits in (4, 5, 6):
        if p < SURE and float(text) >= SURE:
            text = f"{p:.{digits}f}"
    return f"p = {text}".replace("0.", ".", 1)


def points(share: float) -> str:
    """Format a difference of shares in percentage points: `+3.1`, `−12`; only 0 is `0`."""
    value = 100 * share
    text = f"{abs(value):.1f}".removesuffix(".0")
    if text == "0" and value:
        text = f"{abs(value):.1g}"
    sign = "" if not value else "+" if value > 0 else MINUS
    return sign + text


def percent(share: float) -> str:
    """Format a share in percent without the sign: `82.1`, `79`."""
    return f"{100 * share:.1f}".removesuffix(".0")


def value_text(value: object) -> str:
    """Format a setting's value for people."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:g}".replace("-", MINUS)
    return json.dumps(value, ensure_ascii=False)
