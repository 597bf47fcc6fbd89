"""The columns of a list of runs, for the screen and the command line."""

import math
from collections.abc import Callable

from grpo_engine.frozen import frozen
from grpo_engine.metrics import spec
from grpo_engine.run_health import Health
from grpo_tui.app.text.numbers import (
    MINUS,
    moment,
    narrow,
    seconds,
    share,
    short,
    sparkline,
    value_text,
    with_unit,
)
from grpo_tui.app.text.safe_text import pad
from grpo_tui.experiments.db.texts import seconds as seconds_of
from grpo_tui.experiments.values import MetricSummary, RunSummary, column_label, setting_path

CURVE_WIDTH = 10
Spans = list[tuple[str, str]]  # texts and their styles


@frozen
class Outcome:
    """A run's health, its smoothed reward at the end, and its rewards averaged to a few."""

    health: Health
    reward: float = math.nan
    curve: tuple[float, ...] = ()


# arguments: a run, the time in seconds, and its outcome unless that is still being read
Draw = Callable[[RunSummary, float, Outcome | None], Spans]
HEALTH_COLOURS = {
    "learning": "good",
    "slowing": "good",
    "learned": "good",
    "flat": "warn",
    "unstable": "warn",
    "hacked?": "bad",
    "broken": "bad",
}


@frozen
class RunColumn:
    """A column: its title, what the screen sorts by, how it draws a run, and where its text is."""

    title: str
    key: str = ""
    draw: Draw
    align: str = "<"
    width: int = 0  # cells on the screen; 0 for what only the command line shows


def _text(name: str) -> Draw:
    return lambda run, *_: [(getattr(run, name), "text")]


def _status(run: RunSummary, *_: object) -> Spans:
    since = f" since {moment(run.status_since)}" if run.status_since else ""
    return [(run.status + since + ", archived" * run.archived, "text")]


def _age(run: RunSummary, now: float, *_: object) -> Spans:
    created = seconds_of(run.created_at)
    age = run.created_at if math.isnan(created) else seconds(max(0.0, now - created))
    return [(age, "label")]


def _curve(_run: RunSummary, _now: float, outcome: Outcome | None) -> Spans:
    bars = sparkline(outcome.curve, CURVE_WIDTH) if outcome else ""
    return [(bars.replace("█", "▇"), "series.reward")]  # a gap to the row above


def _health(_run: RunSummary, _now: float, outcome: Outcome | None) -> Spans:
    word = outcome.health.label if outcome else ""
    return [(word, HEALTH_COLOURS.get(word, "label"))]


def _held_out(run: RunSummary, _now: float, outcome: Outcome | None) -> Spans:
    """The last held-out accuracy and its gain since the first; else the reward at the end.

    One that was measured at the start alone is dimmed and has its step.
    """
    metric = metric_of(run, "eval/accuracy")
    if metric is None or metric.last is None:
        reward = outcome.reward if outcome else math.nan
        if math.isnan(reward):
            return [("–", "label")]
        return [("reward ", "label"), (narrow(reward, 5), "text")]
    if metric.last_step == metric.first_step:
        step = f" @{short(metric.last_step)}" if run.step > (metric.last_step or 0) else ""
        return [(share(metric.last), "label" if step else "text"), (pad(step, 5), "label")]
    gain = ""
    if metric.first is not None:
        gain = f"{100 * (metric.last - metric.first):+.0f}".replace("-", MINUS)
    learns = outcome is not None and outcome.health.label in ("learning", "slowing", "learned")
    return [(share(metric.last), "text"), (pad(gain, 5, ">"), "good" if learns else "label")]


def metric_of(run: RunSummary, key: str) -> MetricSummary | None:
    """A metric of the run; for held-out accuracy the greedy one if there is no sampled one.

    Greedy answers are measured first, so before the first step a sampled one may follow.
    """
    metric = run.metrics.get(key)
    if metric is None and key == "eval/accuracy" and (run.step or not run.active):
        metric = run.metrics.get("eval/greedy/accuracy")
    return metric


def _best(key: str) -> Draw:
    """The best value and its step."""
    unit = spec(key).unit

    def draw(run: RunSummary, *_: object) -> Spans:
        metric = metric_of(run, key)
        if metric is None or metric.best is None:
            return [("–", "label")]
        step = pad(f"@{short(metric.best_step)}", 5)
        return [(with_unit(metric.best, unit, 7), "text"), (f" {step}", "label")]

    return draw


def _last(key: str) -> Draw:
    unit = spec(key).unit

    def draw(run: RunSummary, *_: object) -> Spans:
        metric = metric_of(run, key)
        return [(with_unit(metric.last if metric else None, unit, 6), "text")]

    return draw


def added(expression: str) -> RunColumn:
    """A column of any setting or metric, in the column language."""
    unit = next(filter(None, (spec(name).unit for name in expression.split())), "")
    label = column_label(expression)
    title = label.rpartition(".")[2] if setting_path(expression) else label
    width = max(6, min(18, len(title) + 1))

    def draw(run: RunSummary, *_: object) -> Spans:
        value = run.columns.get(label)
        is_number = value is None or isinstance(value, float)
        return [(with_unit(value, unit, width) if is_number else value_text(value), "text")]

    return RunColumn(title=title, width=width, key=expression, draw=draw, align=">")


ID = RunColumn(title="id", draw=_text("id"))
NAME = RunColumn(
    title="name", width=12, key="name", draw=lambda run, *_: [(run.name or run.id, "headline")]
)
HEALTH = RunColumn(title="health", width=9, draw=_health)
HELD_OUT = RunColumn(
    title="held-out", width=12, key="last eval/accuracy", draw=_held_out, align=">"
)
STEPS = RunColumn(
    title="steps",
    width=14,
    key="step",
    draw=lambda run, *_: [
        (f"{short(run.step)}{f'/{short(total)}' if (total := run.total_steps) else ''}", "text")
    ],
    align=">",
)
# What is hidden last on a narrow terminal.
FIRST = (NAME, HEALTH, HELD_OUT, STEPS)
COLUMNS = (
    ID,
    NAME,
    RunColumn(title="status", draw=_status),
    HEALTH,
    HELD_OUT,
    STEPS,
    RunColumn(title="tags", width=14, draw=lambda run, *_: [(" ".join(run.tags), "text")]),
    RunColumn(title="age", width=7, key="created", draw=_age, align=">"),
    RunColumn(title="curve", width=CURVE_WIDTH, draw=_curve),
    RunColumn(title="recipe", width=10, key="recipe", draw=_text("recipe")),
    RunColumn(title="KL", width=6, key="kl", draw=_last("kl"), align=">"),
    RunColumn(title="task", width=14, key="task", draw=_text("task")),
    RunColumn(title="model", width=14, key="model", draw=_text("model")),
    RunColumn(title="clipped", draw=_last("clip_ratio/region_mean"), align=">"),
    RunColumn(title="speed", draw=_last("tokens_per_second"), align=">"),
    RunColumn(title="best reward", width=13, key="reward", draw=_best("reward"), align=">"),
)
