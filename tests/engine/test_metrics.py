"""Every metric has a description of two sentences."""

import math
import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from grpo_engine.config.recipes import RECIPES, recipe
from grpo_engine.maths.metrics import metrics
from grpo_engine.metrics import METRICS, count_of, function_of, is_metric, natural_range, spec
from tests.engine.maths.helpers import loss_of, random_batch


@given(st.sampled_from(list(RECIPES)), st.booleans())
def test_every_metric_of_a_loss_is_described(name: str, corrected: bool) -> None:
    how = recipe(name, importance_cap=3.0 * (corrected and name != "sft"))
    for metric in metrics(loss_of(random_batch(1), how).terms, how):
        assert metric in METRICS, metric


def test_reward_functions_are_described_by_their_name() -> None:
    assert spec("rewards/accuracy/mean").label == "accuracy"
    assert spec("rewards/accuracy/mean").direction == "up"
    assert spec("rewards/accuracy/std").direction == "none"


def test_only_rewards_and_evaluations_have_a_best_value() -> None:
    for name in (
        "reward",
        "sampled/reward",
        "rewards/f/mean",
        "eval/accuracy",
        "eval/pass@4",
        "eval/greedy/accuracy",
        "task/sums/reward",
    ):
        assert spec(name).best, name
    for name in (
        "frac_reward_zero_std",
        "groups/refilled",
        "kl",
        "step_time",
        "rewards/f/std",
        "tokens_per_second",
        "eval/truncated",
        "unheard/of",
    ):
        assert not spec(name).best, name
    assert all(found.direction != "none" for found in METRICS.values() if found.best)


def test_an_evaluation_of_one_kind_has_the_unit_of_the_plain_one() -> None:
    found = spec("eval/greedy/accuracy")
    assert (found.unit, found.direction) == ("share", "up")
    assert found.label == "held-out accuracy, greedy"
    assert found.name == "eval/greedy/accuracy"


def test_shares_lie_from_0_to_1_and_amounts_are_not_negative() -> None:
    for name in ("eval/accuracy", "completions/clipped_ratio", "eval/greedy/accuracy"):
        assert natural_range(name) == (0.0, 1.0)
    for name in (
        "kl",
        "step_time",
        "completions/mean_length",
        "memory/peak_gb",
        "reward_std",
        "rewards/f/std",
        "grad_norm",
    ):
        assert natural_range(name) == (0.0, math.inf)
    for name in ("loss", "reward", "rewards/f/mean", "eval/reward"):
        assert natural_range(name) == (-math.inf, math.inf)
    assert natural_range("value/explained_variance") == (-math.inf, 1.0)


def test_what_the_page_calls_a_metric_of_ours_and_of_trl_is_one_of_ours() -> None:
    page = (Path(__file__).parents[2] / "docs" / "maths.md").read_text(encoding="utf-8")
    table = page.partition("## TRL's metrics")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("| `")]
    ours = {name: row[2].strip() for row in rows for name in re.findall(r"`([^`]+)`", row[1])}
    assert {"same", "other"} <= set(ours.values())
    for name, comparison in ours.items():
        if comparison in ("same", "other") and name != "log_metric":  # which is a function
            assert is_metric(name.replace("NAME", "f")), name


def test_counts_of_answers_are_described_with_the_mean_that_they_are_of() -> None:
    assert count_of("eval/reward") == "eval/scored/reward"
    assert count_of("eval/greedy/rewards/f") == "eval/greedy/scored/rewards/f"
    assert count_of("eval/task/sums/accuracy") == "eval/task/sums/scored/accuracy"
    assert {count_of(name) for name in ("reward", "eval/mean_length", "rewards/f/mean")} == {""}
    for name in (
        "eval/scored/reward",
        "eval/greedy/scored/rewards/f",
        "eval/task/sums/scored/accuracy",
        "eval/failed/f",
        "rewards/f/failed",
    ):
        assert is_metric(name), name
        assert spec(name).unit == "answers", name
    assert spec("eval/greedy/scored/reward").label == "held-out reward, greedy: scored"
    assert [function_of(name) for name in ("eval/failed/f", "rewards/f/failed")] == ["f", "f"]
