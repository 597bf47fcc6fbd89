"""Descriptions of all metrics: of `metrics.toml`, and by patterns of `metric_families.toml`."""

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from grpo_engine.events import Phase

# The phases of a training step. `time/others` and `time/environment` are none.
PHASES: tuple[Phase, ...] = ("generate", "score", "logprobs", "update")

Direction = Literal["up", "down", "none"]


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """What a metric measures, which direction is better, and its guide lines.

    `also` are other words that people use for it; searches find it by them. `best` is whether its
    best value tells how good the run became, as a reward's does; the least time of a step does not.
    """

    name: str
    label: str
    help: str
    direction: Direction = "none"
    unit: str = ""
    guides: tuple[float, ...] = ()
    also: str = ""
    best: bool = False


_DESCRIBED = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
METRICS = {
    name: MetricSpec(name, **fields | {"guides": tuple(fields.get("guides", ()))})
    for name, fields in _DESCRIBED.items()
}

_FAMILIES = [
    (re.compile(row.pop("pattern"), re.DOTALL), row)
    for row in tomllib.loads(
        Path(__file__).with_name("metric_families.toml").read_text(encoding="utf-8")
    )["family"]
]


def time_of(phase: str) -> str:
    """The metric with the seconds of a phase."""
    return f"time/{phase}"


def phase_seconds(metrics: Mapping[str, float]) -> dict[str, float]:
    """A step's seconds by phase and in what is no phase, `other`; they sum to `step_time`."""
    spent: dict[str, float] = {
        phase: metrics[time_of(phase)] for phase in PHASES if time_of(phase) in metrics
    }
    if not spent or not metrics.get("step_time"):
        return spent
    return {**spent, "other": max(0.0, metrics["step_time"] - math.fsum(spent.values()))}


_BY_FUNCTION = re.compile(
    r"(?:sampled/)?rewards/(.+)/(?:mean|std|failed)"
    r"|eval/(?:greedy/)?(?:failed|(?:scored/)?rewards)/(.+)"
)
_HELD_OUT = re.compile(
    r"eval/(?:greedy/)?(?:task/.+/)?"
    r"(?:(?:accuracy|accuracy_of_formatted|format|reward|turns)(?:_low|_high)?"
    r"|mean_length|truncated|pass@\d+|scored/.+|failed/.+)"
)
_COUNTED = re.compile(r"(eval/(?:greedy/)?(?:task/.+/)?)(accuracy|reward|rewards/.+)")


_BY_JUDGE = re.compile(r"judge/(.+)/(calls|failures|cached|cost)")
_BY_TASK = re.compile(
    r"task/(?P<task>.+?)/(?P<metric>reward|frac_reward_zero_std|groups|rewards/.+/mean)"
)


def is_metric(name: str) -> bool:
    """Whether a run may measure this: a described metric, or one named after what it measures."""
    patterns = (_BY_FUNCTION, _HELD_OUT, _BY_TASK, _BY_JUDGE)
    return name in METRICS or any(pattern.fullmatch(name) for pattern in patterns)


def function_of(name: str) -> str:
    """The reward function that a metric is named after; empty for other metrics."""
    match = _BY_FUNCTION.fullmatch(name)
    return (match[1] or match[2]) if match else ""


def count_of(name: str) -> str:
    """The metric with the number of answers that a held-out mean is of; empty for other metrics."""
    match = _COUNTED.fullmatch(name)
    return f"{match[1]}scored/{match[2]}" if match else ""


def spec(name: str) -> MetricSpec:
    """Describe a metric; names that contain a reward function's name are matched by pattern."""
    if name in METRICS:
        return METRICS[name]
    if (derived := _derived(name)) is not None:
        return derived
    match, row = next((m, row) for pattern, row in _FAMILIES if (m := pattern.fullmatch(name)))
    texts = {key: row[key].format(**match.groupdict("")) for key in ("label", "help")}
    return MetricSpec(name, **{**row, **texts})


def _derived(name: str) -> MetricSpec | None:
    """What describes a metric that is another one of some answers; None for any other."""
    head, _, leaf = name.partition("/")
    mode, _, metric = leaf.partition("/")
    if head == "sampled":
        base = spec(leaf)
        text = (
            f"As {base.label}, over all answers that were sampled. Dynamic sampling keeps only "
            "groups whose answers differ."
        )
        return MetricSpec(name, f"{base.label}, all sampled", text, base.direction, best=base.best)
    if head == "eval" and (count := re.search(r"/(scored|failed)(?=/)", name)):
        label = spec(name.replace(count[0], "", 1)).label
        role = "that it is the mean of" if count[1] == "scored" else "on which the function failed"
        text = f"Held-out answers {role}. The setting rewards.on_failure decides about failures."
        return MetricSpec(name, f"{label}: {count[1]}", text, unit="answers")
    if head == "eval" and mode == "greedy":
        base = spec(f"eval/{metric}")
        return replace(base, name=name, label=f"{base.label.removesuffix(', sampled')}, greedy")
    task, _, last = metric.rpartition("/")
    base_name = f"eval/{last}" if head == "eval" and mode == "task" else ""
    if (match := _BY_TASK.fullmatch(name)) and match["metric"] != "groups":
        task, base_name = match["task"], match["metric"]
    if not base_name:
        return None
    base = spec(base_name)
    return replace(base, name=name, label=f"{task}: {base.label}")


def natural_range(name: str) -> tuple[float, float]:
    """The least and the greatest value that a metric can have."""
    if name == "value/explained_variance":
        return -math.inf, 1.0
    unit = spec(name).unit
    if unit == "share":
        return 0.0, 1.0
    positive = unit or name.endswith(("std", "grad_norm"))
    return (0.0 if positive else -math.inf), math.inf
