"""Numbers that call for an alert raise it; healthy ones do not."""

import inspect
import itertools
import json
from collections.abc import Callable, Sequence

import pytest

from grpo_engine.alerts import rules as alert_rules
from grpo_engine.alerts.state import REPEAT, Alerts, Limits
from grpo_engine.config.mismatch import ROUNDING
from grpo_engine.config.settings import AlertsConfig
from grpo_engine.events import AlertRaised, EvaluationFinished, StepFinished

MEAN, MOST = (f"sampling/sampling_logp_difference/{name}" for name in ("mean", "max"))
LIMITS = Limits(updates_per_step=2, accuracy="exact", memory_gb=8.0)
Numbers = dict[str, float]


def healthy(step: int) -> Numbers:
    wobble = 0.02 * (-1) ** step
    return {
        "reward": 0.5 + wobble,
        "rewards/exact/mean": 0.4 + wobble,
        "rewards/exact/std": 0.3,
        "frac_reward_zero_std": 0.2,
        "kl": 0.01,
        "entropy": 0.8,
        "completions/mean_length": 40.0,
        "completions/clipped_ratio": 0.1,
        "completions/duplicates": 0.1,
        "clip_ratio/region_mean": 0.05,
        "grad_norm": 0.3,
        MEAN: 1e-6,
        MOST: 1e-5,
        "sampling/masked_ratio": 0.0,
        "time/score": 0.1,
        "step_time": 1.0,
        "memory/peak_gb": 2.0,
    }


def finished(step: int, numbers: Numbers) -> StepFinished:
    return StepFinished(step=step, metrics=numbers, tokens=step * 10, elapsed=float(step))


def evaluated(step: int, accuracy: float) -> EvaluationFinished:
    return EvaluationFinished(
        step=step, moment="during", mode="sampled", problems=10, samples=1, rows=(), seconds=1.0,
        metrics={"eval/accuracy": accuracy},
    )  # fmt: skip


def fold(rows: Sequence[Numbers], limits: Limits = LIMITS) -> list[AlertRaised]:
    alerts = Alerts(limits)
    return [
        alert
        for step, numbers in enumerate(rows, 1)
        for alert in alerts.observe(finished(step, numbers))
    ]


def late(change: Callable[[int], Numbers], count: int = 10, total: int = 30) -> list[Numbers]:
    """Healthy steps with the last `count` changed; `change` gets 1, 2, ... for those."""
    return [
        healthy(n) | (change(n - total + count) if n > total - count else {})
        for n in range(1, total + 1)
    ]


def test_healthy_numbers_raise_nothing() -> None:
    assert fold([healthy(n) for n in range(1, 41)]) == []


CASES: dict[str, Callable[[int], Numbers]] = {
    "no_signal": lambda _: {"frac_reward_zero_std": 0.6},
    "format_hacking": lambda n: {"reward": 0.7 + n / 100, "rewards/exact/mean": 0.4},
    "kl_above_limit": lambda _: {"kl": 0.6},
    "kl_exploding": lambda _: {"kl": 0.15},
    "entropy_collapse": lambda _: {"entropy": 0.05},
    "length_growth": lambda n: {"completions/mean_length": 60.0 + n},
    "most_truncated": lambda _: {"completions/clipped_ratio": 0.7},
    "clip_too_much": lambda _: {"clip_ratio/region_mean": 0.4},
    "clip_never": lambda _: {"clip_ratio/region_mean": 0.0},
    "gradient_spike": lambda _: {"grad_norm": 4.0},
    "sampler_disagrees": lambda _: {MOST: 0.01},
    "many_masked": lambda _: {"sampling/masked_ratio": 0.4},
    "reward_slow": lambda _: {"time/score": 0.9},
    "reward_constant": lambda _: {"rewards/exact/std": 0.0},
    "duplicates": lambda _: {"completions/duplicates": 0.7},
    "memory_near_limit": lambda _: {"memory/peak_gb": 7.5},
    "step_time_doubled": lambda _: {"step_time": 2.5},
}


@pytest.mark.parametrize("rule", CASES)
def test_numbers_that_mean_it_raise_the_alert(rule: str) -> None:
    found = [alert for alert in fold(late(CASES[rule])) if alert.rule == rule]
    assert found
    assert found[0].step > 20
    assert found[0].explanation
    assert found[0].remedy


def test_flat_held_out_accuracy_under_rising_reward_is_an_alert() -> None:
    alerts, rules = Alerts(LIMITS), []
    for step in range(1, 31):
        rules += [alert.rule for alert in alerts.observe(finished(step, healthy(step) | {
            "reward": 0.3 + step / 60, "rewards/exact/mean": 0.3 + step / 60
        }))]  # fmt: skip
        if step % 10 == 0:
            list(alerts.observe(evaluated(step, 0.4)))
    assert rules == []
    rules += [a.rule for a in alerts.observe(finished(31, healthy(31) | {"reward": 0.9}))]
    assert rules == ["held_out_flat"]


def test_bounds_that_never_act_are_no_news_with_one_update() -> None:
    rows = late(CASES["clip_never"])
    assert [a.rule for a in fold(rows)] == ["clip_never"]
    assert fold(rows, Limits(updates_per_step=1, accuracy="exact")) == []


FOLDED = {MEAN: 0.0065, MOST: 0.15}  # measured: LoRA folded into bfloat16 weights
ROUNDED = {MEAN: 0.004, MOST: 0.4}  # two kernels that round bfloat16 differently


@pytest.mark.parametrize(
    ("dtype", "corrected", "first", "later", "raised"),
    [
        ("float32", False, {}, {MEAN: 5e-5, MOST: 5e-4}, None),
        ("float32", False, {}, {MEAN: 2e-4, MOST: 5e-4}, MEAN),
        ("float32", False, {}, {MEAN: 2e-6, MOST: 2e-3}, MOST),
        ("bfloat16", False, {MEAN: 0.0, MOST: 0.0}, FOLDED, MEAN),
        ("bfloat16", False, {}, {MEAN: 0.0005, MOST: 0.3}, MOST),
        # one logit rounded to its other neighbour
        ("bfloat16", False, {}, {MEAN: 4e-6, MOST: 0.125}, None),
        ("bfloat16", True, {MEAN: 0.0, MOST: 0.0}, {MEAN: 4e-6, MOST: 0.125}, None),
        ("float16", True, {MEAN: 0.0, MOST: 0.0}, {MEAN: 1e-6, MOST: 0.0157}, None),
        # corrected: 5 x 0 is less than what rounding explains, .001
        ("bfloat16", True, {MEAN: 0.0, MOST: 0.0}, FOLDED, MEAN),
        # 5 x .004 = .02: as far as the first step's gap makes likely
        ("bfloat16", True, ROUNDED, ROUNDED, None),
        ("bfloat16", True, ROUNDED, {MEAN: 0.019, MOST: 0.99}, None),
        ("bfloat16", True, ROUNDED, {MEAN: 0.021, MOST: 0.4}, MEAN),
        # 4 x .25 = 1: a larger first gap raises the limit no further
        ("bfloat16", True, {MEAN: 0.004, MOST: 0.9}, {MEAN: 0.004, MOST: 1.1}, MOST),
        ("float16", False, {MEAN: 0.0, MOST: 0.0}, {MEAN: 1.3e-4, MOST: 0.008}, MEAN),
    ],
)
def test_a_gap_is_an_alert_where_rounding_does_not_explain_it(
    dtype: str, corrected: bool, first: Numbers, later: Numbers, raised: str | None
) -> None:
    limits = Limits(accuracy="exact", sampler_gap=ROUNDING[dtype], corrected=corrected)
    rows = [healthy(1) | first, *(healthy(n) | later for n in range(2, 6))]
    found = [alert for alert in fold(rows, limits) if alert.step > 1]
    assert [alert.rule for alert in found] == ["sampler_disagrees"] * bool(raised)
    for alert in found:
        assert alert.value == later[str(raised)]
        assert f"{later[MOST]:.2g} at most" in alert.explanation
        assert ("importance_cap 3" in alert.remedy) != corrected
        assert alert.severity == ("warning" if corrected else "error")


def test_an_alert_that_holds_is_repeated_only_now_and_then() -> None:
    steps = [a.step for a in fold(late(CASES["most_truncated"], count=25, total=35))]
    assert {b - a for a, b in itertools.pairwise(steps)} == {REPEAT}
    assert len(steps) == 3


def test_a_fold_restored_from_its_state_goes_on_alike() -> None:
    rows = late(CASES["gradient_spike"])
    whole = [a for a in fold(rows) if a.step > 15]
    first, second = Alerts(LIMITS), Alerts(LIMITS)
    for step, numbers in enumerate(rows[:15], 1):
        list(first.observe(finished(step, numbers)))
    second.restore(json.loads(json.dumps(first.state())))
    resumed = [
        a for step, row in enumerate(rows[15:], 16) for a in second.observe(finished(step, row))
    ]
    assert resumed == whole
    assert whole


def test_every_threshold_is_a_setting_that_is_obeyed() -> None:
    rows = [healthy(n) | {"kl": 0.01, "completions/duplicates": 0.3} for n in range(1, 31)]
    assert fold(rows) == []
    strict = Limits(updates_per_step=2, thresholds=AlertsConfig(kl=0.005, duplicates=0.2))
    found = {alert.rule: alert.limit for alert in fold(rows, strict)}
    assert found == {"kl_above_limit": 0.005, "duplicates": 0.2}
    rules = inspect.getsource(alert_rules)
    assert all(f"facts.limits.{name}" in rules for name in AlertsConfig.model_fields)
