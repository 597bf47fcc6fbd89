"""What Watch shows, as values made from a snapshot of the run; knows no Textual."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from grpo_engine.events import Group
from grpo_engine.metrics import PHASES, phase_seconds, spec, time_of
from grpo_tui.app.charts.axis import steps_from
from grpo_tui.app.charts.lines import Curve, with_ends
from grpo_tui.app.charts.series import Series
from grpo_tui.app.feed.narrator import narrate
from grpo_tui.app.feed.snapshot import LogLine, Snapshot, StepGroup
from grpo_tui.app.text.limits import LIMITS
from grpo_tui.app.text.numbers import with_unit
from grpo_tui.app.text.words import count_of
from grpo_tui.app.tui.screens.priorities import Part, shared_lines
from grpo_tui.experiments.values import AlertView, BoardGroup

CONSTANT_FROM = 10  # values; before that any metric may look constant
NAMED_ALERT = "format_hacking"  # the rule of the one that the sentences refer to
ROUND_STEPS = 10  # of which the axis of a run that goes on has as many at most


@dataclass(frozen=True, kw_only=True)
class WatchState:
    """The run at this moment, the earlier step on screen, and the prompt in focus."""

    snapshot: Snapshot = field(default_factory=Snapshot)
    past: Snapshot | None = None
    prompt: int = 0
    on_groups: bool = False  # whether the groups have the focus

    @property
    def step(self) -> Snapshot:
        """The step on screen."""
        return self.past or self.snapshot

    @cached_property
    def groups(self) -> Snapshot:
        """The step of the groups: the last one with scores."""
        return self.step.scored

    @property
    def completions(self) -> Snapshot:
        """The step of the answers: that of the groups if they have the focus."""
        return self.groups if self.on_groups else self.step

    @property
    def sentences(self) -> tuple[str, ...]:
        """What happens in the step on screen, or what happened in an earlier one."""
        if self.past is None:
            prompt = min(self.prompt, max(0, len(self.snapshot.groups) - 1))
            return narrate(self.snapshot, prompt)
        now = f", seen from step {self.snapshot.current_step}" * self.snapshot.active
        hint = f"Step {self.past.step}{now}. esc returns to the latest step."
        return hint, *narrate(self.past, self.prompt)


# -- layout -------------------------------------------------------------------------------------

ONE_COLUMN, TWO_COLUMNS, TWO_CHARTS, SIDE = 72, 110, 160, 190  # cells from which there are more


@dataclass(frozen=True, slots=True)
class Layout:
    """The lines of the sentences, and the grid of the panels below: its columns and rows.

    `spans` are the columns and rows of a panel that takes several.
    """

    sentences: int
    columns: tuple[int | str, ...]
    rows: tuple[int, ...]
    spans: Mapping[str, tuple[int, int]] = field(default_factory=dict)


def parts_of(width: int, height: int, answers: int, groups: int) -> tuple[Part, ...]:
    """The parts of Watch by the questions that they answer; what is cut last comes first."""
    sentences = 3 if height >= 27 and width < TWO_CHARTS else 2
    log = 3 + max(0, height - 21) // 5
    return (
        Part("narrator", 2, sentences, title=0),  # is the reward hacked, why is the loss near 0
        Part("curves", 6),  # is it learning
        Part("alerts", 3, log),  # what went wrong
        Part("answers", 4, answers + 3),  # what it writes to this prompt
        Part("groups", 5, min(groups + 4, 2 * height // 3)),  # which prompts teach nothing
    )


def layout_of(
    width: int, height: int, *, answers: int, groups: int, cells: int, focused: str = ""
) -> Layout:
    """The layout for the space below the phases, which say how long it takes.

    The groups need so many cells, and the prompts have so many `answers` at most. The panels are
    in one column to four; on a wide terminal groups, alerts and log are below each other.
    """
    narrator, curves, alerts, lanes, overview = parts = parts_of(width, height, answers, groups)
    columns: tuple[int | str, ...] = ("1fr",)
    if width < ONE_COLUMN:
        lines = shared_lines(parts, height, focused)
        order = ("curves", "answers", "groups", "alerts")
        return Layout(lines["narrator"], columns, tuple(lines[name] for name in order))
    above = (narrator, Part("panels", curves.minimum + 2))
    if width >= SIDE:
        lines = shared_lines(above, height)
        side = shared_lines((overview, Part("alerts", alerts.minimum)), lines["panels"], focused)
        spans = {"curves": (1, 2), "answers": (1, 2)}
        rows: tuple[int, ...] = (side["groups"], side["alerts"])
        columns = (39 * width // 100, "1fr", 6 * width // 25)
        return Layout(lines["narrator"], columns, rows, spans)
    lines = shared_lines((*above, alerts), height, focused)
    if width < TWO_COLUMNS:
        step = shared_lines((lanes, overview), lines["panels"], focused)
        spans = {"curves": (1, 2), "alerts": (2, 1)}
        rows = (step["answers"], step["groups"], lines["alerts"])
        return Layout(lines["narrator"], (36, "1fr"), rows, spans)
    charts = max(78, 46 * width // 100) if width >= TWO_CHARTS else 34 * width // 105
    columns, rows = (charts, "1fr", min(44, max(26, cells))), (lines["panels"], lines["alerts"])
    return Layout(lines["narrator"], columns, rows, {"alerts": (3, 1)})


# -- answers ------------------------------------------------------------------------------------


def fair_limit(needed: Sequence[int], space: int) -> int:
    """The largest number of lines for which all that need more can be cut to it; 1 at least."""
    limits = range(1, max(1, space) + 1)
    return max((n for n in limits if sum(min(n, lines) for lines in needed) <= space), default=1)


def group_at(snapshot: Snapshot, prompt: int) -> StepGroup | None:
    """The group of a prompt, or the last one."""
    groups = snapshot.groups
    return groups[min(prompt, len(groups) - 1)] if groups else None


def largest_push(group: StepGroup) -> float:
    """The group's largest |advantage|, which scales the colours of pushes."""
    if isinstance(group, BoardGroup):
        return 1.0
    return max((abs(item.advantage) for item in group.rollouts if item.advantage), default=1.0)


def no_push_reason(group: StepGroup) -> str:
    """Why no answer of a recorded group is pushed; empty if some are, or if not recorded yet."""
    return group.no_signal if isinstance(group, Group) else ""


# -- alerts and log -----------------------------------------------------------------------------


SEVERITIES = ("error", "warning", "info")


def by_severity(alerts: Sequence[AlertView]) -> list[AlertView]:
    """First the alert that the sentences above name, then the worst, of these the newest."""

    def rank(alert: AlertView) -> tuple[bool, int, int]:
        known = alert.severity in SEVERITIES
        severity = SEVERITIES.index(alert.severity) if known else len(SEVERITIES)
        return alert.rule != NAMED_ALERT, severity, -alert.last_step

    return sorted(alerts, key=rank)


def log_entries(snapshot: Snapshot) -> list[AlertView | LogLine]:
    """The log from the oldest line on; a closed alert is after the lines of its last step."""
    entries: list[AlertView | LogLine] = list(snapshot.log)
    active = (*snapshot.open_alerts, *snapshot.muted_alerts)
    for alert in snapshot.alerts:
        if alert not in active:
            later = (i for i, line in enumerate(entries) if line.step > alert.last_step)
            entries.insert(next(later, len(entries)), alert)
    return entries


def counted(snapshot: Snapshot) -> str:
    """The number of active alerts, and how many of them are muted."""
    if snapshot.reading:
        return "reading the run"
    count, muted = len(snapshot.open_alerts), len(snapshot.muted_alerts)
    warnings = sum(line.severity != "info" for line in snapshot.log)
    quiet = "no alerts" + f" · {count_of(warnings, 'warning')} in the log" * bool(warnings)
    if snapshot.status in ("failed", "lost"):
        quiet = f"run {snapshot.status}"
    text = f"{count} open" if count else quiet
    return f"{text} · {muted} muted" if muted else text


def spent_in(snapshot: Snapshot) -> dict[str, float]:
    """Seconds of a step in each phase, and in what is no phase.

    They are smoothed while the run is active, then means over all steps, as in `report`.
    """
    if not snapshot.step_seconds:
        return {}
    series = {name: snapshot.series.get(name) for name in map(time_of, PHASES)}
    means = {
        name: item.value if snapshot.active else item.overall
        for name, item in series.items()
        if item is not None and item.count
    }
    return phase_seconds({**means, "step_time": snapshot.step_seconds})


# -- charts -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart: its metrics, and the colours of their curves."""

    title: str
    keys: tuple[str, ...]
    names: tuple[str, ...] = ("",)
    family: tuple[str, ...] = ()


def chart_of(key: str, *family: str) -> Chart:
    """The chart of one metric, under its name."""
    return Chart(spec(key).label, (key,), family=family)


FIXED = (
    chart_of("kl", "kl"),
    chart_of("teacher/kl", "kl"),
    Chart("held-out accuracy", ("eval/accuracy",), family=("reward",)),
    Chart(
        "clipped",
        ("clip_ratio/low_mean", "clip_ratio/high_mean"),
        ("low", "high"),
        ("entropy", "clip"),
    ),
    chart_of("completions/clipped_ratio", "length"),
    chart_of("entropy", "entropy"),
    chart_of("completions/mean_length", "length"),
    chart_of("loss", "loss"),
    chart_of("grad_norm", "gradient"),
    chart_of("learning_rate", "rate"),
    chart_of("step_time", "time"),
    chart_of("tokens_per_second", "time"),
    chart_of("memory/peak_gb", "memory"),
)

# charts whose curves have no limit, with the metric that has it
LIMITED = {"clip_ratio/low_mean": "clip_ratio/region_mean"}


def curves_of(chart: Chart, snapshot: Snapshot) -> dict[str, dict[str, Curve]]:
    """The whole curves of a chart for a figure, by the metric of its axis and by name."""
    series = snapshot.series
    return {
        chart.keys[0]: {
            name or chart.title: with_ends(key, series[key], lambda end: series.get(end, Series()))
            for key, name in zip(chart.keys, chart.names, strict=True)
            if key in series
        }
    }


def charts_of(
    snapshot: Snapshot, added: Sequence[str] = (), order: Sequence[str] = ()
) -> tuple[Chart, ...]:
    """The charts that a run has data for, and of added metrics; constant ones come last.

    Without rewards the loss is what is watched. Titles in `order` come first, in that order.
    """
    charts = [reward_chart(snapshot), *FIXED]
    charted = {key for chart in charts for key in chart.keys}
    charts += [chart_of(key) for key in dict.fromkeys(added) if key not in charted]
    recorded = [chart for chart in charts if any(key in snapshot.series for key in chart.keys)]
    first = "reward" if "reward" in snapshot.series else "loss"
    recorded.sort(key=lambda chart: (is_constant(chart, snapshot), chart.title != first))
    positions = {title: index for index, title in enumerate(order)}
    return tuple(sorted(recorded, key=lambda chart: positions.get(chart.title, len(order))))


def matching(charts: Sequence[Chart], text: str) -> tuple[Chart, ...]:
    """The charts with all the words in the name, key or other words of one of their metrics."""
    terms = text.casefold().split()
    texts = {chart: " ".join(map(_words, chart.keys)).casefold() for chart in charts}
    return tuple(chart for chart in charts if all(term in texts[chart] for term in terms))


def _words(key: str) -> str:
    return f"{key} {spec(key).label} {spec(key).also}"


def reward_chart(snapshot: Snapshot) -> Chart:
    """The chart of the reward and of each of its functions."""
    names = tuple(snapshot.reward_curves)
    keys = ("reward", *(f"rewards/{name}/mean" for name in names))
    return Chart("reward", keys, ("", *names), ("reward",))


def is_constant(chart: Chart, snapshot: Snapshot) -> bool:
    """Whether a chart would be flat lines only; the reward is always drawn."""
    curves = [snapshot.series[key] for key in chart.keys if key in snapshot.series]
    return chart.keys[0] != "reward" and all(map(_is_flat, curves))


def _is_flat(series: Series) -> bool:
    last = series.last
    return series.count >= CONSTANT_FROM and all(value == last for value in series.values)


def guides_of(chart: Chart, snapshot: Snapshot) -> tuple[tuple[float, tuple[str, ...]], ...]:
    """The guide lines of a chart with their words: the run's limit, which several steps cross."""
    key = chart.keys[0]
    limit = LIMITS.get(LIMITED.get(key, key))
    if limit is None:
        return ()
    value = limit.value(snapshot.head.config)
    text = f"limit {with_unit(value, spec(key).unit)}"
    return ((value, (f"{text} over {limit.steps} steps", text, "limit")),)


def last_step(snapshot: Snapshot) -> int:
    """The step at the right end of the charts, which is a round one while the run goes on."""
    last = max(1, snapshot.step)
    if not snapshot.active:
        return last
    unit = max(1, int(next(steps_from(last / ROUND_STEPS))))
    end = unit * math.ceil(last / unit)
    return max(last, min(end, snapshot.head.total_steps or end))
