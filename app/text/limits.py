"""The limits of metrics, and whether a run is within them, as the alerts compare it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from grpo_engine.metrics import spec
from grpo_tui.app.text.numbers import with_unit


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit, the alert beyond it, and how many of the last steps are compared with it.

    It is the setting below `alerts`, or else a constant of `rules`. `excused` says when a metric
    may be beyond it.
    """

    rule: str
    setting: str = ""
    constant: str = ""
    steps: int = 5
    middle: str = "mean"
    excused: str = ""

    def value(self, config: Mapping[str, Any]) -> float:
        """The limit of a run with these settings."""
        # the first screen does without pydantic
        from grpo_engine.alerts import rules
        from grpo_engine.config.settings import AlertsConfig

        if self.constant:
            return float(getattr(rules, self.constant))
        chosen = config.get("alerts", {}).get(self.setting)
        return float(getattr(AlertsConfig(), self.setting) if chosen is None else chosen)


LIMITS: Mapping[str, Limit] = {
    "kl": Limit(
        "kl_above_limit",
        setting="kl",
        middle="median",
        excused="five times that is allowed while answers get better, twice in the first 20 steps",
    ),
    "frac_reward_zero_std": Limit(
        "no_signal", setting="no_signal", excused="as it should be where most answers became right"
    ),
    "completions/clipped_ratio": Limit("most_truncated", setting="cut", steps=3),
    "completions/duplicates": Limit(
        "duplicates", setting="duplicates", steps=3, excused="allowed while answers get better"
    ),
    "clip_ratio/region_mean": Limit(
        "clip_too_much", constant="CLIP", excused="the bounds may be of whole answers"
    ),
    "sampling/masked_ratio": Limit("many_masked", constant="MASKED"),
}


def judged(
    key: str, values: Sequence[float], config: Mapping[str, Any], alerts: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Whether the last values of a metric are fine, as a word and a sentence with the reason.

    `alerts` are the rules of the alerts that are open.
    """
    limit = LIMITS.get(key)
    if limit is None:
        return
    unit, bound = spec(key).unit, limit.value(config)
    text = with_unit(bound, unit) + f" (alerts.{limit.setting})" * bool(limit.setting)
    if len(values) < limit.steps:
        what = f"{text}: the {limit.middle} of {limit.steps} steps is compared with it"
        so_far = f"; so far {with_unit(max(values), unit)} at most" if values else ""
        yield "limit", f"{what}{so_far}."
        return
    last = (median if limit.middle == "median" else fmean)(values[-limit.steps :])
    is_high, raised = last > bound, limit.rule in alerts
    reason = f"the {limit.middle} of the last {limit.steps} steps, {with_unit(last, unit)}, is "
    reason += f"{'beyond' if is_high else 'within'} the limit of {text}"
    excuse = f"; no alert: {limit.excused}" * (is_high and not raised and bool(limit.excused))
    yield "high" if is_high else "fine", f"{reason}{excuse}{'; see the alert' * raised}."
