"""Help texts on each topic as plain paragraphs, without Textual."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files

from grpo_engine.metrics import METRICS, MetricSpec, spec
from grpo_engine.run_health import Health
from grpo_tui.app.feed.snapshot import Snapshot
from grpo_tui.app.text.limits import LIMITS, judged
from grpo_tui.app.text.numbers import with_unit
from grpo_tui.experiments.values import AlertView


@dataclass(frozen=True, slots=True)
class HelpPart:
    """A heading and its paragraphs; a paragraph may begin with a highlighted word."""

    heading: str
    paragraphs: tuple[tuple[str, str], ...]

    @property
    def haystack(self) -> str:
        """All its words, for a filter."""
        texts = (text for paragraph in self.paragraphs for text in paragraph)
        return " ".join((self.heading, *texts)).casefold()

    @property
    def stored_as(self) -> str:
        """The name in the store of a metric or an alert."""
        return dict(self.paragraphs).get("stored as", "")


_TEXTS = tomllib.loads(files(__package__).joinpath("help.toml").read_text(encoding="utf-8"))

SCREENS: Mapping[str, str] = _TEXTS["screens"]
PANELS = {
    name: HelpPart(panel["heading"], tuple(map(tuple, panel["paragraphs"])))
    for name, panel in _TEXTS["panels"].items()
}
PANELS_OF: Mapping[str, tuple[str, ...]] = {
    "watch": ("phases", "curves", "answers", "groups", "log"),
    "rollouts": ("prompts", "tokens", "why", "lab"),
    "lab": ("lab",),
}
ALERTS: Mapping[str, str] = _TEXTS["alerts"]  # what each means
HEALTH: Mapping[str, str] = _TEXTS["health"]  # what each word means
# the setting below `alerts` of those that have one
THRESHOLDS = {limit.rule: limit.setting for limit in LIMITS.values() if limit.setting}
# the rules whose value and limit are shares
SHARES = {limit.rule for key, limit in LIMITS.items() if spec(key).unit == "share"} | {
    "reward_slow"
}

DIRECTIONS = {"up": "Higher is better.", "down": "Lower is better.", "none": ""}


def metric_part(name: str, snapshot: Snapshot | None = None) -> HelpPart:
    """Describe a metric: its meaning, better direction, current value and whether that is fine."""
    metric: MetricSpec = spec(name)
    paragraphs = [("", metric.help)]
    if DIRECTIONS[metric.direction]:
        paragraphs.append(("", DIRECTIONS[metric.direction]))
    run = snapshot or Snapshot()
    greedy, sampled = (
        name.replace("eval/", "eval/greedy/", 1),
        name.replace("eval/greedy/", "eval/"),
    )
    other, mode = (greedy, "greedy") if name == sampled else (sampled, "sampled")
    for label, key in ("value", name), (mode, other if other != name else ""):
        if (series := run.series.get(key)) is not None and series.count:
            text = f"{with_unit(series.last, metric.unit)} at step {series.last_step}"
            smoothed = f", smoothed {with_unit(series.value, metric.unit)}" * (not series.sparse)
            paragraphs.append((label, text + smoothed))
    recent = run.series[name].recent if name in run.series else ()
    paragraphs += judged(name, recent, run.head.config, [alert.rule for alert in run.open_alerts])
    if metric.also:
        paragraphs.append(("also called", metric.also))
    paragraphs.append(("stored as", name))
    return HelpPart(metric.label, tuple(paragraphs))


def setting_part(path: str) -> HelpPart:
    """Describe a setting: its effect, range and default."""
    from grpo_engine.config.declaration import as_text
    from grpo_engine.config.parse import entries, settings

    info = settings().get(path) or entries().get(path)
    if info is None:
        return HelpPart(path, (("", "There is no such setting."),))
    empty = "set by the recipe" if path.startswith("algorithm.") else "nothing"
    default = as_text(info.default) or empty
    return HelpPart(path, (("", info.help), ("values", info.allowed), ("default", default)))


def alert_part(rule: str, snapshot: Snapshot) -> HelpPart:
    """Describe an alert: its meaning, when it was raised, and what to try."""
    alert = next((alert for alert in snapshot.alerts if alert.rule == rule), None)
    if alert is None:
        missing = "" if snapshot.status == "empty" else "It was not raised in this run."
        paragraphs = [("", ALERTS.get(rule, "")), *[("", missing)] * bool(missing)]
    else:
        paragraphs = [("", alert.explanation), ("try", alert.remedy), *_raised(alert)]
    return HelpPart(_name_of(rule), (*paragraphs, ("stored as", rule)))


def _name_of(rule: str) -> str:
    """An alert's heading; Watch's sentence has reward hacking, of which form is the usual kind."""
    name = {"format_hacking": "reward hacking"}.get(rule, rule.replace("_", " "))
    return f"alert: {name}"


def _raised(alert: AlertView) -> Iterator[tuple[str, str]]:
    """The value of an alert, when it was raised, and where."""
    if alert.value is not None and alert.limit is not None:
        unit = "share" if alert.rule in SHARES else ""
        value, limit = with_unit(alert.value, unit), with_unit(alert.limit, unit)
        yield "value", f"{value}, limit {limit}"
    often = f"{alert.count} times, first at step {alert.first_step}, last " * (alert.count > 1)
    yield "raised", f"{often}at step {alert.last_step}"
    if alert.group is not None:
        yield "prompt", f"{alert.group + 1} of the step"
    if alert.muted:
        yield "muted", "in this run; x in the list unmutes it"


def health_part(name: str, health: Health) -> HelpPart:
    """Say why a run has the word that it has in the header, and what that means."""
    word = health.label
    return HelpPart(f"health of {name}", ((word, health.reason), ("", HEALTH[word])))


def topic_part(topic: str, snapshot: Snapshot) -> HelpPart:
    """The part that explains a topic such as `metric:kl`, `setting:seed`, `panel:groups`."""
    kind, _, name = topic.partition(":")
    match kind:
        case "metric":
            return metric_part(name, snapshot)
        case "setting":
            return setting_part(name)
        case "alert":
            return alert_part(name, snapshot)
        case "panel" if name in PANELS:
            return PANELS[name]
        case "screen" if name in SCREENS:
            return HelpPart(name.replace("_", " "), (("", SCREENS[name]),))
    return HelpPart(name or kind, (("", "There is no help on this."),))


def alert_parts() -> list[HelpPart]:
    """Return every alert and where its threshold is set."""
    parts = []
    for rule, meaning in ALERTS.items():
        setting = [("threshold", f"alerts.{THRESHOLDS[rule]}")] if rule in THRESHOLDS else []
        parts.append(HelpPart(_name_of(rule), (("", meaning), *setting, ("stored as", rule))))
    return parts


def setting_parts() -> list[HelpPart]:
    from grpo_engine.config.parse import settings

    return list(map(setting_part, settings()))


def metric_parts() -> list[HelpPart]:
    return list(map(metric_part, METRICS))
