"""`stop_when`: conditions on a run's metrics that end it before its last step.

`kl > .3` holds at one measurement, `reward >= .9 for 5` at five in a row, and `eval/accuracy flat
for 3` once three in a row were no better than the best before them. `step` counts as a metric.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grpo_engine.config.conditions import (
    OPERATORS,
    Compound,
    Either,
    Every,
    Node,
    Not,
    Term,
    Text,
    number_of,
    parse,
)
from grpo_engine.errors import ConfigError, nearest, quoted
from grpo_engine.metrics import METRICS, is_metric, spec

# `flat` and `for N` become parts of the term before them.
_FLAT, _TIMES = re.compile(r"\s+flat\b"), re.compile(r"\s+for\s+([1-9]\d{0,8})\b", re.ASCII)
FORMS = "write it as `kl > .3`, `reward >= .9 for 5` or `eval/accuracy flat for 3`"


@dataclass(slots=True)
class Streak:
    """The measurements of a check so far."""

    times: int = 0  # consecutive measurements that hold, or bring no new best
    last: float = math.nan
    best: float | None = None


@dataclass(frozen=True, slots=True)
class StopCheck:
    """One metric, compared with a limit or flat, at this many measurements in a row."""

    metric: str
    op: str  # an operator, or `flat`
    limit: float
    times: int

    def __str__(self) -> str:
        if self.op == "flat":
            return f"{self.metric} flat for {self.times}"
        return f"{self.metric} {self.op} {self.limit:g}" + f" for {self.times}" * (self.times > 1)

    def observe(self, value: float, streak: Streak) -> None:
        streak.last = value
        if self.op != "flat":
            streak.times = streak.times + 1 if OPERATORS[self.op](value, self.limit) else 0
        elif is_better(self.metric, value, streak.best):
            streak.times, streak.best = 0, value
        elif not math.isnan(value):  # NaN measures nothing
            streak.times += 1


def is_better(metric: str, value: float, best: float | None) -> bool:
    """Whether a value beats the best so far; lower is better where the metric says so."""
    if best is None:
        return not math.isnan(value)
    return value < best if spec(metric).direction == "down" else value > best


class StopRule:
    """A parsed `stop_when`; the caller keeps its streaks, by the text of each check."""

    def __init__(self, text: str, title: str = "stop_when") -> None:
        try:
            self._tree = _resolved(
                parse(_TIMES.sub(r"@\1", _FLAT.sub("~flat", text)), "the condition")
            )
        except ValueError as error:
            raise ConfigError(f"{title}: {error}; {FORMS}", title) from None
        self._checks = {str(check): check for check in _checks(self._tree)}

    @property
    def metrics(self) -> set[str]:
        return {check.metric for check in self._checks.values()}

    def observe(self, metrics: Mapping[str, float], streaks: dict[str, Streak]) -> str:
        """Take in new measurements; return them if the condition holds, else an empty text."""
        for name, check in self._checks.items():
            if check.metric in metrics:
                check.observe(metrics[check.metric], streaks.setdefault(name, Streak()))
        if not _is_met(self._tree, streaks):
            return ""
        last = {c.metric: streaks[name].last for name, c in self._checks.items() if name in streaks}
        return ", ".join(f"{metric} {value:.4g}" for metric, value in last.items())


def _is_met(node: Any, streaks: Mapping[str, Streak]) -> bool:
    match node:
        case Not((part,)):
            return all(str(c) in streaks for c in _checks(part)) and not _is_met(part, streaks)
        case Every(parts):
            return all(_is_met(part, streaks) for part in parts)
        case Either(parts):
            return any(_is_met(part, streaks) for part in parts)
    return str(node) in streaks and streaks[str(node)].times >= node.times


def _checks(node: Any) -> list[StopCheck]:
    if isinstance(node, Compound):
        return [check for part in node.parts for check in _checks(part)]
    return [node]


def _resolved(node: Node) -> Any:
    """The tree with its terms read as checks."""
    match node:
        case Compound(parts):
            return type(node)(tuple(map(_resolved, parts)))
        case Term(name, "~", value) if value.startswith("flat"):
            if not (times := value[len("flat@") :]):
                raise ValueError("`flat` needs `for N`, the measurements without a new best")
            return StopCheck(_metric(name), "flat", 0.0, int(times))
        case Term(name, op, value) if op in OPERATORS:
            number, _, times = value.partition("@")
            limit = number_of(number)
            if limit is None or times.strip("0123456789") or times.startswith("0"):
                raise ValueError(f"{name} {op} {quoted(value)} compares with no number")
            return StopCheck(_metric(name), op, limit, int(times or 1))
        case Term(name, op, value):
            raise ValueError(f"{quoted(name + op + value)} compares no numbers")
        case Text(name):
            raise ValueError(f"{quoted(name)} is without a comparison")


def _metric(name: str) -> str:
    if name != "step" and not is_metric(name):
        hint = nearest(name, METRICS, 1)
        if name.startswith("rewards/"):
            hint = f"; did you mean rewards/{name.split('/')[1]}/mean?"
        raise ValueError(f"there is no metric {quoted(name)}{hint}")
    return name
