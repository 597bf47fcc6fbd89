"""What is wrong with a run, for people who did not watch it: its end, and its alerts by topic."""

from collections.abc import Iterator, Mapping, Sequence
from heapq import nlargest
from operator import attrgetter
from typing import TYPE_CHECKING

from grpo_engine.alerts.change import SPAN, go_back
from grpo_engine.events import Severity
from grpo_engine.frozen import frozen
from grpo_engine.run_health import Evidence, Health, health
from grpo_tui.experiments.values import AlertView, GroupView, RunSummary

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader

SHOWN = 3  # answers of a run whose reward is hacked
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "error")

# By topic the beginning of a metric without which nothing was checked, and the rules.
TOPICS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "hacking": ("reward", ("format_hacking", "reward_conflict", "reward_saturated")),
    "held-out": ("eval/", ("held_out_fell", "held_out_flat")),
    "reward": ("reward", ("reward_fell", "reward_constant", "nothing_learned")),
    "signal": (
        "frac_reward_zero_std",
        ("no_signal", "refills_exhausted", "duplicates", "task_solved"),
    ),
    "failures": (
        "reward",
        (
            *(f"reward_{cause}" for cause in ("exception", "crash", "timeout", "count", "type")),
            "reward_value",
            "reward_no_score",
            "environment_error",
        ),
    ),
    "length": ("completions/mean_length", ("length_collapse", "length_growth", "most_truncated")),
    "teacher": ("teacher/kl", ("teacher_too_far",)),
    "KL": ("kl", ("kl_exploding", "kl_above_limit")),
    "entropy": ("entropy", ("entropy_collapse",)),
    "clipping": ("clip_ratio/region_mean", ("clip_too_much", "clip_never")),
    "update": ("grad_norm", ("not_finite", "loss_not_finite", "gradient_spike")),
    "sampler": (
        "sampling/sampling_logp_difference/mean",
        ("sampler_disagrees", "many_masked"),
    ),
    "throughput": (
        "step_time",
        ("step_time_doubled", "reward_slow", "slow_products", "busy_machine", "battery_low"),
    ),
    "memory": ("memory/peak_gb", ("memory_near_limit", "memory_swapped")),
}
OF_RULE = {rule: topic for topic, (_, rules) in TOPICS.items() for rule in rules}
ENDINGS: Mapping[str, tuple[Severity, str, str]] = {
    "failed": (
        "error",
        "The run failed: {}.",
        "Correct what the message names, and resume the run.",
    ),
    "lost": ("error", "The run's process is gone.", "Resume the run; its log may say why."),
    "stalled": ("warning", "The run makes no progress.", "Look at its log: `grpo-tui logs`."),
}
# What a run's health counts as; the other words are no problems.
OF_HEALTH: Mapping[str, Severity] = {
    "hacked?": "error",
    "broken": "error",
    "unstable": "warning",
    "flat": "warning",
}


@frozen
class Example:
    """An answer that shows what a finding means."""

    step: int
    group: int
    rollout: int
    reward: float
    text: str


@frozen
class Finding:
    """One problem of a run; it counts if it held in the last steps and nobody muted it."""

    topic: str
    rule: str
    severity: Severity
    counts: bool = True
    first_step: int
    last_step: int
    times: int = 1
    explanation: str
    remedy: str
    value: float | None = None
    limit: float | None = None
    examples: tuple[Example, ...] = ()

    @property
    def steps(self) -> str:
        first, last = self.first_step, self.last_step
        return f"step {last}" if first == last else f"steps {first}–{last}"


@frozen
class Audit:
    """The health of a run, its findings, the worst first, and the topics without any."""

    health: Health
    findings: tuple[Finding, ...]
    fine: tuple[str, ...]
    unmeasured: tuple[str, ...]

    @property
    def worst(self) -> Severity:
        """The worst severity among the findings that count; `info` without any."""
        counting = [item.severity for item in self.findings if item.counts]
        return max(counting, key=SEVERITIES.index, default="info")


def audit(reader: "StoreReader", run: RunSummary) -> Audit:
    from grpo_tui.experiments.run_health import evidence_of

    evidence = evidence_of(reader, [run])[run.key]
    state = health(evidence)
    alerts = reader.alerts(run.key)
    findings = [_of_alert(reader, run, alert, state) for alert in alerts]
    findings += _ending(run, state, findings)
    findings += _falls(evidence, state, findings)
    findings.sort(
        key=lambda item: (item.counts, SEVERITIES.index(item.severity), item.last_step),
        reverse=True,
    )
    metrics, named = reader.metric_keys(run.key), {item.topic for item in findings}
    named |= {"held-out"} if evidence.falls else set()
    unnamed = [topic for topic in TOPICS if topic not in named]
    fine = {t for t in unnamed if any(name.startswith(TOPICS[t][0]) for name in metrics)}
    if len(evidence.held_out) < 2:
        fine.discard("held-out")
    judge = evidence.judge
    if not judge.function and (judge.shared or len(evidence.held_out) < 2):
        fine.discard("hacking")  # nobody said what is right
    if run.step <= 2 * SPAN:  # too early for the rules that compare with usual values
        fine -= {"hacking", "update", "entropy"}
    return Audit(
        health=state,
        findings=tuple(findings),
        fine=tuple(topic for topic in unnamed if topic in fine),
        unmeasured=tuple(topic for topic in unnamed if topic not in fine),
    )


def _ending(run: RunSummary, state: Health, findings: Sequence[Finding]) -> Iterator[Finding]:
    """How the run ended, or what its health says of the end and no other finding does."""
    if run.status in ENDINGS:
        severity, text, remedy = ENDINGS[run.status]
        text = text.format(run.error.rstrip("."))
    elif state.label in OF_HEALTH and state.reason not in [item.explanation for item in findings]:
        severity, text, remedy = OF_HEALTH[state.label], state.reason, ""
    else:
        return
    health_topic = "hacking" if state.label == "hacked?" else "health"
    yield Finding(
        topic="process" if run.status in ENDINGS else health_topic,
        rule=run.status if run.status in ENDINGS else state.label,
        severity=severity,
        first_step=run.step,
        last_step=run.step,
        explanation=text,
        remedy=remedy,
    )


def _falls(evidence: Evidence, state: Health, findings: Sequence[Finding]) -> Iterator[Finding]:
    """The falls of held-out accuracy since its best that neither an alert nor the health names."""
    if any(item.counts and item.rule == "held_out_fell" for item in findings):
        return
    for fall in (fall for fall in evidence.falls if str(fall) not in state.reason):
        yield Finding(
            topic="held-out",
            rule="held_out_fell",
            severity="warning",
            first_step=fall.best.step,
            last_step=fall.last.step,
            explanation=f"{fall}, which chance does not explain.",
            remedy=f"{go_back(fall.best)}, and read the answers that score highest.",
            value=fall.last.accuracy,
            limit=fall.best.accuracy,
        )


def _of_alert(reader: "StoreReader", run: RunSummary, alert: AlertView, state: Health) -> Finding:
    is_reason = alert.explanation == state.reason
    implied = OF_HEALTH.get(state.label, "info") if is_reason else "info"
    # a store of another version may have another word
    severity = alert.severity if alert.severity in SEVERITIES else "warning"
    examples = _gamed(reader, run, alert.last_step) if alert.rule == "format_hacking" else ()
    return Finding(
        topic=OF_RULE.get(alert.rule, "other"),  # a rule of another version
        rule=alert.rule,
        severity=max(severity, implied, key=SEVERITIES.index),
        counts=alert.is_recent(run.step) and not alert.muted,
        first_step=alert.first_step,
        last_step=alert.last_step,
        times=alert.count,
        explanation=alert.explanation,
        remedy=alert.remedy,
        value=alert.value,
        limit=alert.limit,
        examples=tuple(examples),
    )


def _gamed(reader: "StoreReader", run: RunSummary, step: int) -> Sequence[Example]:
    """The wrong answers with the highest rewards, of the last step up to this one."""
    steps = [item for item in reader.group_steps(run.key) if item <= step]
    groups = reader.groups(run.key, step=steps[-1], origin="train") if steps else ()
    rule = str(reader.settings(run.key).get("evaluation.accuracy") or "")
    examples = [example for group in groups for example in _wrong(group, rule)]
    return nlargest(SHOWN, examples, attrgetter("reward"))


def _wrong(group: GroupView, rule: str) -> Iterator[Example]:
    """The rewarded answers of a group that are wrong, by the run's rule for right answers."""
    from grpo_engine.rewards.right import Right

    for rollout in group.rollouts:
        scores = {reward.name: reward.value for reward in rollout.rewards}
        if Right.of_scores(rule, scores) is False and rollout.reward is not None:
            yield Example(
                step=group.step,
                group=group.index,
                rollout=rollout.index,
                reward=rollout.reward,
                text=rollout.text,
            )
