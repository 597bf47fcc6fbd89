"""Numbers that call for an alert raise it; healthy ones do not."""

import json
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_engine.alerts.rules import RunLimits
from grpo_engine.alerts.state import Alerts
from grpo_engine.config.mismatch import ROUNDING
from grpo_engine.config.recipes import RECIPES
from grpo_engine.config.settings import AlertsConfig
from grpo_engine.events import AlertEnded, AlertRaised, EvaluationFinished, Event, StepFinished
from grpo_engine.numbers import short

MEAN, MOST = (f"sampling/sampling_logp_difference/{name}" for name in ("mean", "max"))
LIMITS = RunLimits(updates_per_step=2, accuracy="exact", memory_gb=8.0, processors=4)
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
        "time/others": 0.2,
        "step_time": 1.0,
        "memory/peak_gb": 2.0,
    }


def finished(step: int, numbers: Numbers) -> StepFinished:
    return StepFinished(step=step, metrics=numbers, tokens=step * 10, elapsed=float(step))


def evaluated(
    step: int,
    accuracy: float,
    mode: Literal["greedy", "sampled"] = "sampled",
    *,
    problems: int = 500,
    samples: int = 1,
) -> EvaluationFinished:
    return EvaluationFinished(
        step=step,
        moment="during",
        mode=mode,
        problems=problems,
        samples=samples,
        rows=(),
        seconds=1.0,
        metrics={"eval/accuracy": accuracy},
    )


def first_steps(alerts: Iterable[AlertRaised]) -> dict[str, int]:
    """The step of each rule's first alert."""
    found: dict[str, int] = {}
    for alert in alerts:
        found.setdefault(alert.rule, alert.step)
    return found


def fold(
    rows: Sequence[Numbers],
    limits: RunLimits = LIMITS,
    evaluations: Sequence[EvaluationFinished] = (),
) -> list[AlertRaised]:
    """The alerts of a run with these metrics; an evaluation follows the step it names."""
    alerts = Alerts(limits)
    events: list[Event] = [finished(step, numbers) for step, numbers in enumerate(rows, 1)]
    events = sorted([*events, *evaluations], key=lambda event: event.step)
    told = (told for event in events for told in alerts.observe(event))
    return [event for event in told if isinstance(event, AlertRaised)]


def late(change: Callable[[int], Numbers], count: int = 10, total: int = 30) -> list[Numbers]:
    """Healthy steps with the last `count` changed; `change` gets 1, 2, ... for those."""
    return [
        healthy(n) | (change(n - total + count) if n > total - count else {})
        for n in range(1, total + 1)
    ]


CASES: dict[str, Callable[[int], Numbers]] = {
    "no_signal": lambda _: {"frac_reward_zero_std": 0.6},
    "format_hacking": lambda n: {"reward": 0.7 + n / 100, "rewards/exact/mean": 0.4},
    "nothing_learned": lambda _: {"kl": 1e-5},
    "kl_above_limit": lambda _: {"kl": 0.6},
    "kl_exploding": lambda _: {"kl": 0.15},
    "entropy_collapse": lambda _: {"entropy": 0.05},
    "length_collapse": lambda _: {"completions/mean_length": 10.0},
    "reward_fell": lambda _: {"reward": 0.2},
    "length_growth": lambda n: {"completions/mean_length": 60.0 + n},
    "most_truncated": lambda _: {"completions/clipped_ratio": 0.7},
    "clip_too_much": lambda _: {"clip_ratio/region_mean": 0.4},
    "clip_never": lambda _: {"clip_ratio/region_mean": 0.0},
    "loss_not_finite": lambda _: {"loss": math.nan},
    "gradient_spike": lambda _: {"grad_norm": 4.0},
    "sampler_disagrees": lambda _: {MOST: 0.01},
    "many_masked": lambda _: {"sampling/masked_ratio": 0.4},
    "reward_slow": lambda _: {"time/score": 0.9},
    "reward_constant": lambda _: {"rewards/exact/std": 0.0},
    "duplicates": lambda _: {"completions/duplicates": 0.7},
    "memory_near_limit": lambda _: {"memory/peak_gb": 7.5},
    "memory_swapped": lambda n: {
        "memory/swap_gb": 0.1 * n,
        "memory/footprint_gb": 5.0,
        "memory/pressure": 2.0,
    },
    "step_time_doubled": lambda _: {"step_time": 2.5},
}


@pytest.mark.parametrize("rule", CASES)
def test_numbers_that_mean_it_raise_the_alert(rule: str) -> None:
    found = [alert for alert in fold(late(CASES[rule])) if alert.rule == rule]
    assert found
    assert found[0].step > 20
    assert found[0].explanation
    assert found[0].remedy


def of_step_time(now: Numbers, before: Numbers | None = None) -> list[AlertRaised]:
    """What is said of twenty steps and five slower ones."""
    rows = [healthy(n) | (before or {}) | (now if n > 20 else {}) for n in range(1, 26)]
    return [alert for alert in fold(rows) if alert.rule == "step_time_doubled"]


def test_a_step_that_is_slow_because_other_programs_are_busy_is_not_the_runs_fault() -> None:
    # processors that others use: 0.2 before, then 2.5 s / 2.5 s = 1
    assert of_step_time({"step_time": 2.5, "time/others": 2.5}) == []
    # 1 before as well: they cannot be the reason
    (alert,) = of_step_time({"step_time": 2.5, "time/others": 2.5}, {"time/others": 1.0})
    assert alert.explanation == (
        "A step takes 2.5 s, up from 1.0 s: other programs use no more of the processors than "
        "before."
    )
    # half a processor more is the most: 0.7 is not beyond it and 0.75 is
    assert of_step_time({"step_time": 2.5, "time/others": 2.5 * 0.69})
    assert not of_step_time({"step_time": 2.5, "time/others": 2.5 * 0.75})


def test_on_a_full_machine_a_step_is_measured_in_what_other_programs_leave() -> None:
    # 3.8 of 4 processors leave .05 s of each second, 3.9 leave .025 s: half
    full = {"time/others": 3.8}
    assert of_step_time({"step_time": 2.5, "time/others": 2.5 * 3.9}, full) == []
    assert of_step_time({"step_time": 4.5, "time/others": 4.5 * 3.9}, full)


def test_a_step_is_not_judged_where_it_is_unknown_what_other_programs_did() -> None:
    rows = late(lambda _: {"step_time": 2.5})
    unknown = [{k: v for k, v in row.items() if k != "time/others"} for row in rows]
    assert "step_time_doubled" in first_steps(fold(rows))
    assert "step_time_doubled" not in first_steps(fold(unknown))


def test_a_step_that_takes_longer_for_longer_answers_says_so() -> None:
    (alert,) = of_step_time({"step_time": 2.5, "completions/mean_length": 100.0})
    assert alert.explanation == (
        "A step takes 2.5 s, up from 1.0 s: answers went from 40 to 100 tokens."
    )
    assert "rollout.max_new_tokens" in alert.remedy


# KL of two runs of the benchmark: PPO, whose accuracy rises from .38 to .66, and twelve passes.
PPO = (
    0.004, 0.009, 0.007, 0.008, 0.027, 0.44, 0.009, 0.04, 0.223, 0.073, 0.093, 0.181, 0.11, 0.049,
    0.102, 0.044, 0.195, 0.092, 0.111,
)  # fmt: skip
TWELVE = (0.02, 0.036, 0.07, 0.102, 0.082, 0.187, 0.076, 0.131, 0.157, 0.347, 0.24, 0.325, 0.422)


def of_kl(*values: float) -> dict[str, int]:
    return first_steps(fold([healthy(n) | {"kl": kl} for n, kl in enumerate(values, 1)]))


def test_a_few_odd_tokens_do_not_make_the_kl_of_a_run() -> None:
    assert of_kl(*PPO) == {}
    # median of steps 8 to 12: .24, above twice the limit of .1
    assert of_kl(*TWELVE) == {"kl_above_limit": 12}


def test_kl_explodes_if_it_stays_high_or_is_beyond_what_odd_tokens_explain() -> None:
    usual = [0.01] * 10
    assert of_kl(*usual, 0.3, *usual) == {}
    assert of_kl(*usual, 0.3, 0.3)["kl_exploding"] == 12
    assert of_kl(*usual, 0.99) == {}
    assert of_kl(*usual, 1.01)["kl_exploding"] == 11  # ten times the limit of .1
    assert of_kl(*[0.21] * 10, 1.5).keys() == {"kl_above_limit"}  # not ten times the usual


def test_kl_may_be_twice_the_limit_until_it_can_be_told_whether_answers_get_better() -> None:
    assert of_kl(*[0.19] * 19) == {}
    assert of_kl(*[0.21] * 19) == {"kl_above_limit": 5}
    assert of_kl(*[0.19] * 20) == {"kl_above_limit": 20}
    rows = [
        {k: v for k, v in healthy(n).items() if "exact" not in k} | {"kl": 0.11}
        for n in range(1, 10)
    ]
    assert first_steps(fold(rows, RunLimits(updates_per_step=2))) == {"kl_above_limit": 5}


def rising(start: float, end: float, step: int, steps: int = 30) -> float:
    return start + (end - start) * step / steps


def test_right_answers_that_do_not_come_on_held_out_problems_are_an_alert() -> None:
    right = {n: rising(0.3, 0.8, n) for n in range(1, 32)}
    rows = [healthy(n) | {"reward": r, "rewards/exact/mean": r} for n, r in right.items()]
    flat = [evaluated(step, 0.4) for step in (0, 10, 20, 30)]
    better = [evaluated(step, rising(0.4, 0.8, step)) for step in (0, 10, 20, 30)]
    assert set(first_steps(fold(rows, evaluations=flat))) == {"held_out_flat"}
    assert fold(rows, evaluations=better) == []


def test_bounds_on_whole_answers_clip_many_tokens_by_design() -> None:
    rows = late(CASES["clip_too_much"])
    assert set(first_steps(fold(rows))) == {"clip_too_much"}
    assert fold(rows, RunLimits(updates_per_step=4, accuracy="exact", sequence_ratio=True)) == []


def of_teacher(*distances: float, limits: RunLimits = LIMITS) -> list[AlertRaised]:
    rows = [healthy(n) | {"teacher/kl": nats} for n, nats in enumerate(distances, 1)]
    return [alert for alert in fold(rows, limits) if alert.rule == "teacher_too_far"]


def test_a_policy_that_stays_as_far_from_its_teacher_is_told_to_learn_its_answers_first() -> None:
    # measured: 5.24 nats in the median of steps 1 to 3, of which 85 % are 4.45, and 5.08 in that
    # of steps 6 to 8
    far = [5.24, 5.10, 5.69, 6.05, 5.66, 5.02, 5.08]
    assert of_teacher(*far) == []
    (alert,) = of_teacher(*far, 5.57)
    assert (alert.step, alert.severity, alert.value) == (8, "warning", 5.08)
    assert alert.limit == pytest.approx(4.454)
    assert alert.explanation.startswith(
        "After 8 steps the policy is 5.08 nats per token from its teacher, and was 5.24 in the "
        "first 3: "
    )
    assert "algorithm.recipe sft" in alert.remedy


def test_a_policy_that_comes_nearer_to_its_teacher_or_is_near_is_left_alone() -> None:
    # 85 % of 3.0 are 2.55, which the median of steps 6 to 8 is below or not
    assert of_teacher(3.3, 3.0, 2.6, 2.5, 2.6, 2.3, 2.7, 2.54) == []
    assert of_teacher(3.3, 3.0, 2.6, 2.5, 2.6, 2.3, 2.7, 2.56) != []
    # measured: within .2 nats of a teacher of the same origin, sometimes further than at first
    assert of_teacher(0.15, 0.13, 0.47, 0.25, 0.14, 0.33, 0.74, 0.13) == []
    assert of_teacher(*[1.0] * 10) == []
    assert of_teacher(*[1.01] * 10) != []


def test_a_distant_teacher_is_no_problem_while_more_answers_become_right() -> None:
    rows = [
        healthy(n) | {"teacher/kl": 2.0, "rewards/exact/mean": rising(0.2, 0.7, n)}
        for n in range(1, 31)
    ]
    raised = [alert.step for alert in fold(rows) if alert.rule == "teacher_too_far"]
    assert raised == [8, 18]  # from step 20 on it can be told


def refilled(n: int) -> Numbers:
    """A step of dynamic sampling: prompts that are all right are replaced, the rest is kept."""
    right = rising(0.4, 0.9, n, 40)
    return healthy(n) | {
        "groups/refilled": 8.0,
        "reward": 1.5 - right,
        "rewards/exact/mean": 1.0 - right,
        "sampled/reward": right,
        "sampled/rewards/exact/mean": right,
        "completions/duplicates": 0.7,
    }


def test_the_trend_of_rewards_is_that_of_all_sampled_answers() -> None:
    rows = [refilled(n) for n in range(1, 41)]
    assert fold(rows) == []
    kept = [{k: v for k, v in row.items() if not k.startswith("sampled/")} for row in rows]
    assert {"reward_fell", "duplicates"} <= set(first_steps(fold(kept)))
    worse = [row | {"sampled/rewards/exact/mean": row["rewards/exact/mean"]} for row in rows]
    assert "format_hacking" in first_steps(fold(worse))


def test_most_answers_right_is_known_to_the_rest_of_the_engine() -> None:
    alerts = Alerts(LIMITS)
    assert not alerts.is_solving(1)
    for n in range(1, 41):
        list(alerts.observe(finished(n, refilled(n))))
    assert alerts.is_solving(40)


def test_the_penalty_of_a_recipe_is_no_reward_function() -> None:
    rows = [
        healthy(n) | {"rewards/overlong/mean": 0.0, "rewards/overlong/std": 0.0}
        for n in range(1, 31)
    ]
    known = RunLimits(updates_per_step=2, accuracy="exact", weights={"exact": 1.0})
    assert fold(rows, known) == []
    assert set(first_steps(fold(rows))) == {"reward_constant"}


def test_a_recipe_that_learns_within_ten_steps_is_known_to_learn() -> None:
    right = {n: 0.35 if n <= 3 else 0.75 + 0.03 * (-1) ** n for n in range(1, 41)}
    rows = [
        healthy(n)
        | {
            "reward": r,
            "rewards/exact/mean": r,
            "completions/duplicates": 0.7,
            "frac_reward_zero_std": 0.6 * (n > 3),
        }
        for n, r in right.items()
    ]
    assert fold(rows) == []
    # as many right answers from the start on are no reason for groups without signal
    same = [row | {"rewards/exact/mean": 0.75} for row in rows]
    assert first_steps(fold(same)) == {"no_signal": 20, "duplicates": 20}


def test_a_fall_names_the_checkpoints_from_before_it_and_not_the_best() -> None:
    rows = [healthy(n) for n in range(1, 31)]

    def of_fall(*accuracies: float) -> AlertRaised:
        tried = [evaluated(15 * i, value) for i, value in enumerate(accuracies)]
        (alert,) = (a for a in fold(rows, evaluations=tried) if a.rule == "held_out_fell")
        return alert

    fell = of_fall(0.3, 0.8, 0.0117)
    assert fell.explanation.startswith("Held-out accuracy fell from 80% to 1.2% since step 15:")
    assert fell.remedy.startswith("Go back to a checkpoint from before the fall (step 15 or ear")
    assert of_fall(0.8, 0.79, 0.0117).remedy.startswith("Start again from the untrained model;")


def test_the_chance_of_a_share_is_that_of_all_its_answers() -> None:
    rows = [healthy(n) for n in range(1, 31)]
    # .8 to .66: sqrt(.8 x .2/n + .66 x .34/n) is .062 for 100 answers and .031 for 400
    for samples, found in ((1, set[str]()), (4, {"held_out_fell"})):
        tried = [
            evaluated(step, accuracy, problems=100, samples=samples)
            for step, accuracy in ((0, 0.8), (30, 0.66))
        ]
        assert set(first_steps(fold(rows, evaluations=tried))) == found
    # three of three, then none: (3 + 1)/(3 + 2) = .8, so 1 is only 3.1 errors of .33
    three = [evaluated(0, 1.0, problems=3), evaluated(30, 0.0, problems=3)]
    assert fold(rows, evaluations=three) == []


def test_a_task_is_solved_where_nearly_all_answers_are_right_and_groups_have_no_signal() -> None:
    rows = [
        healthy(n) | {"rewards/exact/mean": 0.97, "frac_reward_zero_std": 0.8} for n in range(1, 31)
    ]
    assert set(first_steps(fold(rows))) == {"task_solved"}
    assert fold([row | {"frac_reward_zero_std": 0.3} for row in rows]) == []
    assert set(first_steps(fold([row | {"rewards/exact/mean": 0.3} for row in rows]))) == {
        "no_signal"
    }


def test_greedy_and_sampled_accuracy_are_never_compared() -> None:
    rows = [healthy(n) for n in range(1, 31)]
    tried = [
        one
        for step in (0, 15, 30)
        for one in (evaluated(step, 0.8, "greedy"), evaluated(step, 0.4, "sampled"))
    ]
    assert fold(rows, evaluations=tried) == []
    sampled = [
        one
        for step in (0, 15, 30)
        for one in (evaluated(step, 0.8, "greedy"), evaluated(step, 0.8 - step / 50))
    ]
    assert set(first_steps(fold(rows, evaluations=sampled))) == {"held_out_fell"}
    worse = [evaluated(step, 0.8 - step / 50, "greedy") for step in (0, 15, 30)]
    assert set(first_steps(fold(rows, evaluations=worse))) == {"held_out_fell"}


def test_a_reward_for_short_answers_that_kills_the_right_ones_is_noticed() -> None:
    def hacked(n: int) -> Numbers:
        gone = min(1.0, n / 15)  # length 18 to 1.5 tokens, right answers .06 to .008
        return {
            "reward": 1.0 + 2.5 * gone,
            "rewards/exact/mean": 0.06 - 0.052 * gone + 0.004 * (-1) ** n,
            "rewards/length/mean": 0.3 + 0.65 * gone,
            "rewards/length/std": 0.2,
            "completions/mean_length": 18 - 16.5 * gone,
            "completions/duplicates": 0.1 + 0.45 * gone,
            "entropy": 0.8 - 0.75 * gone,
        }

    found = first_steps(fold([healthy(n) | hacked(n) for n in range(1, 31)]))
    hack = {"format_hacking", "length_collapse", "entropy_collapse", "duplicates"}
    assert set(found) == hack
    assert max(found.values()) <= 25


def fallen(n: int) -> Numbers:
    """Right answers rise to .8 by step 25 and then fall, while reward rises all the time."""
    right = rising(0.3, 0.8, n, 25) if n <= 25 else max(0.2, 0.8 - (n - 25) / 10)
    return {"reward": 0.3 + n / 20, "rewards/exact/mean": right}


@pytest.mark.parametrize(
    ("last", "found"),
    [
        (None, {"format_hacking"}),
        ((26, 0.8), {"format_hacking"}),  # too old to excuse what came after
        ((36, 0.8), set[str]()),  # tried in the last ten steps, and as good as ever
        ((36, 0.5), {"format_hacking", "held_out_fell"}),  # better than at the start, not at best
    ],
)
def test_a_hack_after_a_good_start_is_noticed(
    last: tuple[int, float] | None, found: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpo_engine.alerts.state.REPEAT", 1)
    rows = [healthy(n) | fallen(n) for n in range(1, 41)]
    tried = [evaluated(0, 0.3), evaluated(20, 0.75), evaluated(*last)] if last else []
    raised = fold(rows, evaluations=tried)
    assert {alert.rule for alert in raised if alert.step == 40} == found


def test_a_model_that_learns_the_format_first_is_given_thirty_steps() -> None:
    rows = [
        healthy(n)
        | {
            "reward": rising(0.6, 1.3, min(n, 25), 25),
            "rewards/exact/mean": 0.35 + 0.05 * (-1) ** n + max(0, n - 20) / 50,
        }
        for n in range(1, 41)
    ]
    assert fold(rows) == []
    flat = [row | {"rewards/exact/mean": 0.35 + 0.05 * (-1) ** n} for n, row in enumerate(rows)]
    assert first_steps(fold(flat)) == {"format_hacking": 30}


def test_right_answers_that_fall_at_an_unchanged_reward_are_noticed() -> None:
    rows = [
        healthy(n)
        | {
            "rewards/exact/mean": rising(0.6, 0.1, n),
            "rewards/other/mean": rising(0.1, 0.6, n),
            "rewards/other/std": 0.2,
        }
        for n in range(1, 31)
    ]
    (found, *_) = [alert for alert in fold(rows) if alert.rule == "format_hacking"]
    # .6 - .5 n / 30 has the means .508 of n = 1 to 10 and .342 of n = 11 to 20
    assert "exact went from .51 to .34 while reward" in found.explanation
    assert "(means of steps 1–10 and 11–20). Most of the rise is from other." in found.explanation
    # where the reward falls as well, nobody earned anything by it
    fallen = [row | {"reward": row["rewards/exact/mean"]} for row in rows]
    assert "format_hacking" not in first_steps(fold(fallen))
    assert "reward_fell" in first_steps(fold(fallen))


def test_answers_that_become_right_in_training_alone_are_no_hack() -> None:
    rows = [
        healthy(n) | {"reward": rising(0.3, 0.7, n), "rewards/exact/mean": rising(0.3, 0.7, n)}
        for n in range(1, 31)
    ]
    found = fold(rows, evaluations=[evaluated(0, 0.6), evaluated(20, 0.2)])
    assert set(first_steps(found)) == {"held_out_flat", "held_out_fell"}
    # nor do they excuse what else is wrong
    alike = [row | ({"entropy": 0.01} if n > 15 else {}) for n, row in enumerate(rows)]
    assert "entropy_collapse" not in first_steps(fold(alike))
    found = fold(alike, evaluations=[evaluated(0, 0.6), evaluated(20, 0.2)])
    assert "entropy_collapse" in first_steps(found)


def noisy(start: float, end: float, steps: int, noise: float, seed: int) -> list[float]:
    dice = random.Random(seed)
    return [rising(start, end, n, steps) + dice.uniform(-noise, noise) for n in range(steps)]


@pytest.mark.parametrize("paid", [1.0, -1.0])
def test_of_two_rewards_one_that_rises_while_the_other_falls_is_a_conflict(paid: float) -> None:
    """Also where the model is paid to lower one, so that a rise of it is a loss."""
    limits = RunLimits(updates_per_step=2, weights={"up": 1.0, "down": paid})
    rises, falls = noisy(0.2, 1.2, 40, 0.05, seed=1), noisy(1.2, 0.2, 40, 0.05, seed=2)

    def found(downs: Sequence[float]) -> list[AlertRaised]:
        rows = [
            {"rewards/up/mean": up, "rewards/down/mean": paid * down, "reward": 1.0}
            for up, down in zip(rises, downs, strict=True)
        ]
        return [alert for alert in fold(rows, limits) if alert.rule == "reward_conflict"]

    assert "up went" in found(falls)[0].explanation
    assert "while down went" in found(falls)[0].explanation
    assert found(rises) == []


ODD = st.floats() | st.sampled_from([0.0, 1e308, -1e308, float("inf"), float("-inf")])


@settings(max_examples=60)
@given(
    rows=st.lists(
        st.dictionaries(st.sampled_from([*healthy(1), "rewards/a/mean", "rewards/a/std"]), ODD),
        min_size=1,
        max_size=3,
    ),
    order=st.lists(st.integers(0, 2), min_size=24, max_size=45),
    tried=st.lists(st.tuples(st.integers(0, 40), st.floats(0, 1)), max_size=4),
    whole=st.booleans(),
)
def test_no_metrics_however_odd_end_a_run(
    rows: list[Numbers], order: list[int], tried: list[tuple[int, float]], whole: bool
) -> None:
    made = [(healthy(n) if whole else {}) | rows[i % len(rows)] for n, i in enumerate(order)]
    fold(made, LIMITS, [evaluated(step, accuracy) for step, accuracy in tried])


ACCUSING = {
    "format_hacking",
    "reward_saturated",
    "entropy_collapse",
    "length_collapse",
    "duplicates",
    "held_out_flat",
    "held_out_fell",
}


@given(
    start=st.floats(0.1, 0.4),
    gain=st.floats(0.3, 0.6),
    seed=st.integers(0, 999),
    ends=st.lists(st.floats(0.01, 1), min_size=4, max_size=4),
    steps=st.integers(40, 80),
)
def test_a_model_that_gets_better_is_accused_of_nothing(
    start: float, gain: float, seed: int, ends: list[float], steps: int
) -> None:
    right = noisy(start, start + gain, steps, 0.03, seed)
    rows = [
        healthy(n)
        | {
            "reward": r + ends[0] * n,
            "rewards/exact/mean": r,
            "rewards/format/mean": rising(0.1, ends[0], n, steps),
            "rewards/format/std": 1.0 / n,
            "entropy": rising(1, ends[1] / 20, n, steps),
            "completions/mean_length": rising(20, 20 * ends[2], n, steps),
            "completions/duplicates": rising(0.1, ends[3], n, steps),
        }
        for n, r in enumerate(right, 1)
    ]
    tried = [
        evaluated(step, rising(start, start + gain, step, steps))
        for step in range(0, steps + 1, 10)
    ]
    # a rise of .3 is seen by the time that the first ten steps can be compared with ten others
    assert ACCUSING.isdisjoint(a.rule for a in fold(rows, evaluations=tried) if a.step > 30)


def test_a_reward_that_became_the_same_for_all_is_no_constant_one_while_answers_get_better() -> (
    None
):
    right = {n: rising(0.3, 0.9, n, 40) for n in range(1, 41)}
    rows = [
        healthy(n)
        | {
            "reward": r,
            "rewards/exact/mean": r,
            "rewards/format/mean": min(0.5, n / 30),
            "rewards/format/std": 0.2 if n < 15 else 0.0,
        }
        for n, r in right.items()
    ]
    assert fold(rows) == []
    broken = [row | {"rewards/format/mean": 0.0} if n >= 15 else row for n, row in enumerate(rows)]
    assert "reward_constant" in first_steps(fold(broken))


def test_a_reward_that_only_measures_has_no_effect_to_lose() -> None:
    rows = late(CASES["reward_constant"])
    assert [alert.rule for alert in fold(rows)] == ["reward_constant"]
    of_teacher_alone = RunLimits.of(RECIPES["distill"], AlertsConfig())
    assert fold(rows, replace(of_teacher_alone, accuracy="exact")) == []


def test_a_reward_at_its_maximum_beside_wrong_answers_is_saturated() -> None:
    rows = [
        healthy(n)
        | {
            "rewards/format/mean": min(0.5, n / 40) - 0.001 * (n % 2),
            "rewards/format/std": 0.25 if n < 20 else 0.01,
        }
        for n in range(1, 41)
    ]
    assert "reward_saturated" in first_steps(fold(rows))
    half = [row | {"rewards/format/std": 0.25 if n < 20 else 0.12} for n, row in enumerate(rows)]
    assert "reward_saturated" not in first_steps(fold(half))


def test_evaluations_of_an_older_checkpoint_are_dropped_as_their_modes_are_unknown() -> None:
    alerts = Alerts(LIMITS)
    alerts.restore({"history": [], "start": [], "evaluations": [[0, 0.8], [0, 0.4]], "raised": {}})
    assert list(alerts.observe(finished(1, healthy(1)))) == []
    assert alerts.state()["evaluations"] == {}


def test_bounds_that_never_act_are_no_news_with_one_update() -> None:
    rows = late(CASES["clip_never"])
    assert [a.rule for a in fold(rows)] == ["clip_never"]
    assert fold(rows, RunLimits(updates_per_step=1, accuracy="exact")) == []


FOLDED = {MEAN: 0.0065, MOST: 0.15}  # measured: LoRA folded into bfloat16 weights
ROUNDED = {MEAN: 0.004, MOST: 0.4}  # two kernels that round bfloat16 differently


@pytest.mark.parametrize(
    ("dtype", "corrected", "first", "later", "raised"),
    [
        ("float32", False, {}, {MEAN: 5e-5, MOST: 5e-4}, None),
        ("float32", False, {}, {MEAN: 2e-4, MOST: 5e-4}, MEAN),
        ("float32", False, {}, {MEAN: 2e-6, MOST: 2e-3}, MOST),
        ("bfloat16", False, {MEAN: 0.0, MOST: 0.0}, FOLDED, MEAN),
        # one logit rounded to its other neighbour
        ("bfloat16", False, {}, {MEAN: 4e-6, MOST: 0.125}, None),
        ("bfloat16", True, {MEAN: 0.0, MOST: 0.0}, {MEAN: 4e-6, MOST: 0.125}, None),
        # corrected: 5 x 0 is less than what rounding explains, .001
        ("bfloat16", True, {MEAN: 0.0, MOST: 0.0}, FOLDED, MEAN),
        # 5 x .004 = .02: as far as the first step's gap makes likely
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
    limits = RunLimits(accuracy="exact", sampler_gap=ROUNDING[dtype], corrected=corrected)
    rows = [healthy(1) | first, *(healthy(n) | later for n in range(2, 6))]
    found = [alert for alert in fold(rows, limits) if alert.step > 1]
    assert [alert.rule for alert in found] == ["sampler_disagrees"] * bool(raised)
    for alert in found:
        assert alert.value == later[str(raised)]
        assert f"{short(later[MOST])} at most" in alert.explanation
        assert ("importance_cap 3" in alert.remedy) != corrected
        assert alert.severity == ("warning" if corrected else "error")


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


def test_an_alert_ends_with_its_condition() -> None:
    alerts, cut = Alerts(LIMITS), {"completions/clipped_ratio": 0.9}
    rows = [healthy(n) | (cut if 5 <= n <= 20 else {}) for n in range(1, 31)]
    told = [
        event for step, row in enumerate(rows, 1) for event in alerts.observe(finished(step, row))
    ]
    # the mean of three steps is above .5 from step 6 (.6) to step 21 (.6)
    assert [(type(event), event.step) for event in told if event.rule == "most_truncated"] == [
        (AlertRaised, 6),
        (AlertRaised, 16),
        (AlertEnded, 22),
    ]


def test_every_threshold_is_a_setting_that_is_obeyed() -> None:
    numbers = {
        "kl": 0.01,
        "completions/duplicates": 0.3,
        "completions/clipped_ratio": 0.3,
        "frac_reward_zero_std": 0.3,
    }
    rows = [healthy(n) | numbers for n in range(1, 31)]
    assert fold(rows) == []
    strict = AlertsConfig(kl=0.005, duplicates=0.2, cut=0.1, no_signal=0.2)
    found = {
        alert.rule: alert.limit
        for alert in fold(rows, RunLimits(updates_per_step=2, thresholds=strict))
    }
    assert found == {
        "kl_above_limit": 0.005,
        "duplicates": 0.2,
        "most_truncated": 0.1,
        "no_signal": 0.2,
    }
    assert len(found) == len(AlertsConfig.model_fields)


def of_swap(swap: Sequence[float], *, held: float = 5.0, pressure: float = 2.0) -> list[str]:
    """The explanations of a run that was planned to have 6 GB."""
    numbers = {"memory/footprint_gb": held, "memory/pressure": pressure}
    rows = [healthy(n) | numbers | {"memory/swap_gb": gb} for n, gb in enumerate(swap, 1)]
    alerts = fold(rows, replace(LIMITS, planned_gb=6.0))
    return [alert.explanation for alert in alerts if alert.rule == "memory_swapped"]


def test_swap_that_grows_in_three_steps_is_an_alert_while_memory_is_short() -> None:
    # 1.0 -> 1.3 in three steps of .1; a step of .05 is other programs' coming and going
    assert of_swap([1.0, 1.1, 1.2]) == []
    assert of_swap([1.0, 1.1, 1.2, 1.3]) == [
        "Memory is swapped to disk: 0.3 GB more in three steps, while this run has 5.0 GB. Steps "
        "take many times as long so."
    ]
    assert of_swap([1.0, 1.1, 1.15, 1.25]) == []
    assert of_swap([1.0, 1.1, 1.2, 1.3], pressure=1.0) == []


def test_swap_of_a_run_beyond_its_plan_is_an_alert_even_if_memory_is_not_short() -> None:
    assert of_swap([1.0, 1.1, 1.2, 1.3], held=6.0, pressure=1.0) == []
    (explanation,) = of_swap([1.0, 1.1, 1.2, 1.3], held=6.5, pressure=1.0)
    assert "this run has 6.5 GB and planned to have 6.0" in explanation
