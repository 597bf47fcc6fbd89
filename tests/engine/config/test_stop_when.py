"""`stop_when`: when its conditions hold, and what is said of one that cannot be read."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_engine.config.parse import build
from grpo_engine.config.stop_when import StopRule, Streak
from grpo_engine.errors import ConfigError


def ends_at(text: str, *measured: dict[str, float]) -> int | None:
    """The first of these measurements at which the condition holds."""
    rule, streaks = StopRule(text), dict[str, Streak]()
    for place, metrics in enumerate(measured):
        if rule.observe(metrics, streaks):
            return place
    return None


def kls(*values: float) -> list[dict[str, float]]:
    return [{"kl": value} for value in values]


@pytest.mark.parametrize(
    ("text", "values", "at"),
    [
        ("kl > .3", (0.1, 0.3, 0.31, 0.0), 2),
        ("kl>.3", (0.1, 0.3, 0.31, 0.0), 2),
        ("kl >= .3 for 2", (0.3, 0.1, 0.3, 0.4), 3),
        ("kl > .1 kl < .3", (0.05, 0.4, 0.2), 2),
        ("kl > .5 | kl < .1", (0.2, 0.05), 1),
        ("(kl > .5 | kl < .1) kl < .9", (0.95, 0.6), 1),
        ("!kl < .3", (0.1, 0.2, 0.3), 2),
        ("!(kl < .3 for 2)", (0.1, 0.2, 0.4), 0),  # one in a row is not yet two
        ("kl > .3", (math.nan, math.nan), None),
        ("kl flat for 3", (1.0, 2.0, 3.0, 4.0, 5.0), None),  # more is better unless said otherwise
        ("kl flat for 2", (3.0, 4.0, 4.0, 3.9), 3),  # equal is not better
        ("kl flat for 2", (3.0, 2.0, 3.5, 3.4, 3.3), 4),  # the 3.5 begins the count again
        ("kl flat for 2", (3.0, math.nan, math.nan, 2.0), None),  # NaN: nothing was measured
    ],
)
def test_the_run_ends_at_the_measurement_at_which_the_condition_holds(
    text: str, values: tuple[float, ...], at: int | None
) -> None:
    assert ends_at(text, *kls(*values)) == at


def test_what_was_not_measured_yet_ends_no_run() -> None:
    assert ends_at("!eval/accuracy > .9", {"kl": 1.0}, {"eval/accuracy": 0.5}) == 1
    assert ends_at("kl > .3 eval/accuracy < .5", *kls(1.0, 1.0)) is None
    assert ends_at("kl > .3 !eval/accuracy > .9", {"kl": 1.0}, {"eval/accuracy": 0.5}) == 1


def test_the_step_counts_as_a_metric() -> None:
    assert ends_at("step >= 2 kl > 0", *({"kl": 1.0, "step": step} for step in range(4))) == 2


def test_an_evaluation_counts_once_however_many_steps_follow() -> None:
    # measured .5, then two steps without an evaluation, then .5 and .4: flat for 2 at the last
    steps = [{"eval/accuracy": 0.5}, {"kl": 0.0}, {"kl": 0.0}, {"eval/accuracy": 0.5}]
    assert ends_at("eval/accuracy flat for 2", *steps) is None
    assert ends_at("eval/accuracy flat for 2", *steps, {"eval/accuracy": 0.4}) == 4


def test_lower_is_better_where_the_metric_says_so() -> None:
    falling = [{"eval/truncated": value} for value in (0.5, 0.4, 0.3, 0.3)]
    assert ends_at("eval/truncated flat for 1", *falling) == 3


@given(values=st.lists(st.floats(0, 1), min_size=1, max_size=12), patience=st.integers(1, 4))
def test_flat_means_that_the_last_ones_are_no_better_than_the_best_before(
    values: list[float], patience: int
) -> None:
    ends = [
        place
        for place in range(patience, len(values))
        if max(values[place - patience + 1 : place + 1]) <= max(values[: place - patience + 1])
    ]
    found = ends_at(f"reward flat for {patience}", *({"reward": value} for value in values))
    assert found == (ends[0] if ends else None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kl", "is without a comparison"),
        ("kl > many", "'many' compares with no number"),
        ("kl > .3@0", "compares with no number"),
        ("kl > .3@x", "compares with no number"),
        ("kl flat", "needs `for N`"),
        ("kl flat for", "needs `for N`"),
        ("kl > .3 for 0", "'for' is without a comparison"),
        ("kl:3", "compares no numbers"),
        ("(kl > .3", "not closed"),
        ("kl > .3 |", "empty side"),
        ("rewrd > 1", "did you mean reward"),
        ("eval/acuracy flat for 3", "no metric 'eval/acuracy'"),
        ("rewards/letters > 1", "did you mean rewards/letters/mean"),
    ],
)
def test_a_condition_that_cannot_be_read_says_what_is_wrong(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace("(", r"\(")) as raised:
        build({"stop_when": text, "evaluation": {"every": 5}})
    assert "stop_when" in str(raised.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"stop_when": "eval/accuracy > .9"}, "set evaluation.every"),
        ({"stop_when": "kl > .3", "algorithm": {"recipe": "dapo"}}, "set record.kl true"),
        ({"checkpoint": {"best_by": "reward"}}, "must be none, or a held-out metric"),
        ({"checkpoint": {"best_by": "eval/mean_length"}}, "must be none, or a held-out metric"),
    ],
)
def test_a_metric_that_the_run_does_not_measure_is_refused(
    settings: dict[str, object], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        build(settings)
