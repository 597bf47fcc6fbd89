"""Descriptions of all metrics: those of `metrics.toml`, and of what users' code measures."""

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from grpo_engine.events import BENCHMARK, Phase

# The phases of a training step. `time/processor`, `time/others` and `time/environment` are none.
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
_GREEDY = (
    "Measured on greedy answers, the likeliest token each time, instead of sampled ones, whose "
    "tokens are drawn by chance. The two differ while the model is unsure; where its likeliest "
    "answers are right, training that only makes it surer raises what is measured on sampled ones."
)
_COUNTED = re.compile(r"(eval/(?:greedy/)?(?:task/.+/)?)(accuracy|reward|rewards/.+)")


LOWER_IS_BETTER = re.compile(r"perplexity|bits_per|\b[cw]?er\b|brier|loss")  # of lm-eval's metrics
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


def stderr_of(name: str) -> str:
    """The metric with the standard error of a benchmark's; empty for other metrics."""
    is_value = name.startswith(BENCHMARK) and not is_stderr(name)
    return f"{name}/stderr" if is_value else ""


def is_stderr(name: str) -> bool:
    """Whether a metric is the standard error of another one, which shows it."""
    return name.startswith(BENCHMARK) and name.endswith("/stderr")


def spec(name: str) -> MetricSpec:
    """Describe a metric; names that contain a reward function's name are matched by pattern."""
    if name in METRICS:
        return METRICS[name]
    head, _, leaf = name.partition("/")
    match head:
        case "env":
            return MetricSpec(
                name,
                leaf,
                f"{leaf}, as the environments told it at the end of their episodes. It is the mean "
                "over answers.",
            )
        case "judge":
            return MetricSpec(
                name,
                leaf,
                f"{leaf} of the judge: calls, failures, replies that were known, or the cost. It "
                "is the total since the run was started or resumed.",
            )
        case "rewards":
            return _reward_spec(name, leaf)
        case "sampled":
            base = spec(leaf)
            return MetricSpec(
                name,
                f"{base.label}, all sampled",
                f"As {base.label}, over all answers that were sampled. Dynamic sampling keeps only "
                "groups whose answers differ.",
                base.direction,
                best=base.best,
            )
        case "eval":
            return _held_out_spec(name, leaf)
        case "lm-eval":
            return _benchmark_spec(name, leaf)
    if task := _BY_TASK.fullmatch(name):
        return _task_spec(name, task["task"], task["metric"])
    return MetricSpec(
        name,
        name,
        f"{name}, logged by a reward function or a newer engine. It has no description of its own.",
    )


def _held_out_spec(name: str, leaf: str) -> MetricSpec:
    if count := re.search(r"/(scored|failed)(?=/)", name):
        label = spec(name.replace(count[0], "", 1)).label
        role = "that it is the mean of" if count[1] == "scored" else "on which the function failed"
        text = f"Held-out answers {role}. The setting rewards.on_failure decides about failures."
        return MetricSpec(name, f"{label}: {count[1]}", text, unit="answers")
    mode, _, metric = leaf.partition("/")
    if mode == "greedy":
        base = spec(f"eval/{metric}")
        label = f"{base.label.removesuffix(', sampled')}, greedy"
        return replace(base, name=name, label=label, help=f"{base.help} {_GREEDY}")
    task, _, last = metric.rpartition("/")
    if mode == "task":
        base = spec(f"eval/{last}")
        return replace(base, name=name, label=f"{task}: {base.label}")
    match leaf.rpartition("/")[2]:
        case "truncated":
            return MetricSpec(
                name,
                "held-out truncated, sampled",
                "Share of held-out answers that were cut at the longest length. A cut answer "
                "rarely contains its result.",
                "down",
                "share",
            )
        case "mean_length":
            return MetricSpec(
                name,
                "held-out length, sampled",
                "Mean length of held-out answers. Longer is neither better nor worse by itself.",
                unit="tokens",
            )
    return MetricSpec(
        name,
        f"held-out {leaf}, sampled",
        f"{leaf} on held-out problems. It is measured without training on them.",
        "up",
        best=True,
    )


def _benchmark_spec(name: str, leaf: str) -> MetricSpec:
    if is_stderr(name):
        base = spec(name.removesuffix("/stderr"))
        return MetricSpec(
            name,
            f"{base.label}: s.e.",
            "Standard error of a benchmark's result, by lm-eval. Two results that differ by less "
            "than twice that may be the same.",
        )
    task, _, metric = leaf.partition("/")
    direction: Direction = "down" if LOWER_IS_BETTER.search(metric) else "up"
    return MetricSpec(
        name,
        f"{task}: {metric}",
        f"{metric} of the benchmark {task}, measured by lm-eval after the run. It is measured with "
        "greedy answers, or by the likelihood of given ones.",
        direction,
        best=True,
    )


def _task_spec(name: str, task: str, metric: str) -> MetricSpec:
    if metric != "groups":
        base = spec(metric)
        return replace(base, name=name, label=f"{task}: {base.label}")
    return MetricSpec(
        name,
        f"{task}: groups",
        f"Prompts of task {task} in this step, those that were replaced included. Its weight "
        "decides how many.",
        unit="groups",
    )


def _reward_spec(name: str, leaf: str) -> MetricSpec:
    function, _, statistic = leaf.rpartition("/")
    if statistic == "failed":
        return MetricSpec(
            name,
            f"{function} failures",
            f"Answers of this step on which {function} failed: an exception, a time-out, no score "
            "by a judge. What becomes of them is the setting rewards.on_failure.",
            "down",
            "answers",
        )
    if statistic == "std":
        return MetricSpec(
            name,
            f"{function} spread",
            f"Standard deviation of {function} over this step's answers. At 0 the function scores "
            "all answers the same.",
        )
    return MetricSpec(
        name,
        function or leaf,
        f"Mean of {function or leaf} over this step's answers. Answers it does not apply to are "
        "left out.",
        "up",
        also="reward function, score",
        best=True,
    )


def natural_range(name: str) -> tuple[float, float]:
    """The least and the greatest value that a metric can have."""
    if name == "value/explained_variance":
        return -math.inf, 1.0
    unit = spec(name).unit
    if unit == "share":
        return 0.0, 1.0
    positive = unit or name.endswith(("std", "grad_norm"))
    return (0.0 if positive else -math.inf), math.inf
