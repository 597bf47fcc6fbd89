"""`stop_when`: conditions on a run's metrics that end it before its last step.

`kl > .3` holds at one measurement, `reward >= .9 for 5` at five in a row, and `eval/accuracy flat
for 3` once three in a row were no better than the best before them.
"""

import difflib
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from grpo_engine.config.conditions import (
    OPERATORS,
    Either,
    Every,
    Node,
    Not,
    Term,
    Word,
    number_of,
    parse,
)
from grpo_engine.errors import ConfigError, quoted
from grpo_engine.metrics import METRICS, is_metric, spec

FORMS = "write it as `kl > .3`, `reward >= .9 for 5` or `eval/accuracy flat for 3`"


@dataclass(slots=True)
class Seen:
    times: int = 0  # measurements in a row that count
    last: float = math.nan
    best: float | None = None  # for `flat`


@dataclass(frozen=True, slots=True)
class Check:
    """One metric, compared with a limit or flat, at this many measurements in a row."""

    metric: str
    op: str  # an operator, or `flat`
    limit: float
    times: int

    def __str__(self) -> str:
        if self.op == "flat":
            return f"{self.metric} flat for {self.times}"
        return f"{self.metric} {self.op} {self.limit:g}" + f" for {self.times}" * (self.times > 1)

    def observe(self, value: float, seen: Seen) -> None:
        seen.last = value
        if self.op != "flat":
            seen.times = seen.times + 1 if OPERATORS[self.op](value, self.limit) else 0
        elif is_better(self.metric, value, seen.best):
            seen.times, seen.best = 0, value
        else:
            seen.times += 1


def is_better(metric: str, value: float, best: float | None) -> bool:
    """Whether a value beats the best so far; lower is better where the metric says so."""
    if best is None:
        return not math.isnan(value)
    return value < best if spec(metric).direction == "down" else value > best


class StopRule:
    """A parsed `stop_when`; what it has seen is kept by the caller, by the text of each check."""

    def __init__(self, text: str) -> None:
        try:
            self._tree = parse(text, "the condition")
            self._checks = dict(_checks(self._tree))  # by the place of its first word
        except ValueError as error:
            raise ConfigError(f"stop_when: {error}; {FORMS}", "stop_when") from None

    @property
    def metrics(self) -> set[str]:
        return {check.metric for check in self._checks.values()}

    def observe(self, metrics: Mapping[str, float], seen: dict[str, Seen]) -> str:
        """Take in new measurements; return them if the condition holds, else an empty text."""
        for check in {str(check): check for check in self._checks.values()}.values():
            if check.metric in metrics:
                check.observe(metrics[check.metric], seen.setdefault(str(check), Seen()))
        if not self._holds(self._tree, seen):
            return ""
        last = {c.metric: seen[str(c)].last for c in self._checks.values() if str(c) in seen}
        return ", ".join(f"{metric} {value:.4g}" for metric, value in last.items())

    def _holds(self, node: Node, seen: Mapping[str, Seen]) -> bool:
        match node:
            case Not(part):
                measured = all(str(check) in seen for _, check in _checks(part))
                return measured and not self._holds(part, seen)
            case Every(parts):
                return all(
                    self._holds(part, seen)
                    for part in parts
                    if not isinstance(part, Word | Term) or part.at in self._checks
                )
            case Either(parts):
                return any(self._holds(part, seen) for part in parts)
            case Word() | Term():
                return self._is_met(self._checks[node.at], seen)

    def _is_met(self, check: Check, seen: Mapping[str, Seen]) -> bool:
        known = seen.get(str(check))
        return known is not None and known.times >= check.times


def _checks(node: Node) -> Iterator[tuple[int, Check]]:
    """Every check of a tree, with the place of its first word; ValueError if one is unreadable."""
    match node:
        case Not(part):
            yield from _checks(part)
        case Either(parts):
            for part in parts:
                yield from _checks(part)
        case Every(parts):
            rest = list(parts)
            while rest:
                first = rest.pop(0)
                if isinstance(first, Word | Term):
                    yield first.at, _check(first, rest)
                else:
                    yield from _checks(first)
        case Word() | Term():
            yield node.at, _check(node, [])


def _check(first: Word | Term, rest: list[Node]) -> Check:
    """The check that begins with `first`; the words that belong to it are taken from `rest`."""
    if isinstance(first, Term):
        if first.op not in OPERATORS:
            raise ValueError(f"{quoted(first.key + first.op + first.value)} compares no numbers")
        return Check(_metric(first.key), first.op, _number(first), _times(rest, default=1))
    if not (rest and isinstance(rest[0], Word) and rest[0].text == "flat"):
        raise ValueError(f"{quoted(first.text)} is without a comparison")
    rest.pop(0)
    return Check(_metric(first.text), "flat", 0.0, _times(rest, default=0))


def _metric(name: str) -> str:
    if not is_metric(name):
        close = difflib.get_close_matches(name, METRICS, n=1)
        if name.startswith("rewards/"):
            close = [f"rewards/{name.split('/')[1]}/mean"]
        raise ValueError(
            f"there is no metric {quoted(name)}" + f"; did you mean {close[0]}" * bool(close)
        )
    return name


def _number(term: Term) -> float:
    value = number_of(term.value)
    if value is None:
        raise ValueError(f"{term.key} {term.op} {quoted(term.value)} compares with no number")
    return value


def _times(rest: list[Node], *, default: int) -> int:
    """The N of `for N`; without one the default, where 0 means that it must be there."""
    if not (rest and isinstance(rest[0], Word) and rest[0].text == "for"):
        if not default:
            raise ValueError("`flat` needs `for N`, the measurements without a new best")
        return default
    rest.pop(0)
    count = rest.pop(0) if rest else None
    if not isinstance(count, Word) or not re.fullmatch(r"[1-9]\d{0,8}", count.text, re.ASCII):
        raise ValueError("`for` needs a number of measurements, from 1 to a billion")
    return int(count.text)
