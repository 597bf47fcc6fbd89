"""A run's results as a table: held-out accuracy before and after, with 95% intervals."""

import re
from collections.abc import Mapping, Sequence
from math import isnan, nan
from typing import Any

from grpo_engine.events import EvaluationFinished
from grpo_engine.metrics import count_of
from grpo_tui.app.text.table import table_lines

FUNCTIONS = "eval/rewards/"
MORE = re.compile(rf"eval/pass@|{FUNCTIONS}|eval/task/.*/(accuracy|reward)$")
ROWS = ("eval/accuracy", "eval/format", "eval/accuracy_of_formatted", "eval/reward")


def before_and_after(evaluations: Sequence[EvaluationFinished]) -> str:
    """Tabulate the first and the last evaluation of each mode; empty if there are none."""
    lines: list[str] = []
    for mode in ("greedy", "sampled"):
        of_mode = [item for item in evaluations if item.mode == mode]
        if of_mode:
            ends = of_mode[:1] if len(of_mode) == 1 else [of_mode[0], of_mode[-1]]
            names = [*ends[-1].metrics, *ends[0].metrics]
            more = [key for key in names if MORE.match(key)]
            rows = [_row(key, ends) for key in dict.fromkeys((*ROWS, *more))]
            head, *body = table_lines(list(filter(None, rows)))
            lines += [head, "-" * len(head), *body, ""]
    return "\n".join(lines).rstrip()


def _row(key: str, ends: Sequence[EvaluationFinished]) -> dict[str, str]:
    values = [value for item in ends if (value := measured(item.metrics, key)) is not None]
    if not values and key not in ("eval/accuracy", "eval/reward"):
        return {}
    last = ends[-1]
    samples = "" if last.samples == 1 else f" x {last.samples} samples"
    label = key.removeprefix("eval/")
    row = {f"{last.mode}, {last.problems} problems{samples}": label}
    row |= {_head(item, alone=len(ends) == 1): with_interval(item.metrics, key) for item in ends}
    if len(ends) == 2:
        row["change"] = f"{values[1] - values[0]:+.3f}" if _are_alike(key, ends) else ""
    return row


def _are_alike(key: str, ends: Sequence[EvaluationFinished]) -> bool:
    """Whether a result was measured before and after; a reward, by the same functions."""
    functions = [{name for name in item.metrics if name.startswith(FUNCTIONS)} for item in ends]
    is_measured = all(measured(item.metrics, key) is not None for item in ends)
    return is_measured and (key != "eval/reward" or functions[0] == functions[-1])


def _head(item: EvaluationFinished, *, alone: bool) -> str:
    """Return a column head; a model or adapter without a run has no step."""
    if item.moment == "after" and item.step == 0:
        return "as it is" if alone else "after"
    return f"{item.moment} (step {item.step})"


def measured(metrics: Mapping[str, float], key: str) -> float | None:
    """A result; None where no answer has a score."""
    value = metrics.get(key, nan)
    return None if isnan(value) else value


def with_interval(metrics: Mapping[str, Any], key: str) -> str:
    """A result, its interval, and the number of answers behind it."""
    if (value := measured(metrics, key)) is None:
        return "not measured"
    low, high = metrics.get(f"{key}_low"), metrics.get(f"{key}_high")
    interval = "" if low is None or high is None else f" [{low:.3f}, {high:.3f}]"
    return f"{value:.3f}{interval}{_sample_count(metrics, key)}"


def _sample_count(metrics: Mapping[str, float], key: str) -> str:
    """` n=12`, the number of answers behind a held-out mean; empty if it was not recorded."""
    count = metrics.get(count_of(key))
    return "" if count is None else f" n={count:.0f}"
