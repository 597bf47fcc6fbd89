"""The verdict in words: it says what the test found, and does not contradict itself."""

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_tui.app.text.comparison import (
    points,
    probability,
    ranking_rows,
    ranking_title,
    rankings_of,
    sentence_of,
    setting_name,
)
from grpo_tui.experiments.compare.effects import paired
from grpo_tui.experiments.compare.values import (
    Evaluated,
    PairedTest,
    RankedSetting,
    Ranking,
    Reached,
    SettingDifference,
)

NAMES: Any = SimpleNamespace(
    runs=tuple(SimpleNamespace(id=name, name=f"run-{name}") for name in "abcd"),
    differing=(
        SettingDifference(path="algorithm.beta", values=(0.4, 0.4, 0.04, 0.04)),
        SettingDifference(path="optimizer.beta", values=(1, 1, 2, 2)),
        SettingDifference(path="task.options.hard", values=(True, True, False, False)),
        SettingDifference(path="seed", values=(0, 1, 0, 1)),
    ),
    seeds=(("a", "b"), ("c", "d")),
    by_trainer=(),
)


def compared(left: list[float], right: list[float]) -> PairedTest:
    """A test of two runs by their shares per problem."""
    found = paired(tuple(one - other for one, other in zip(left, right, strict=True)))
    own, other = (
        Evaluated(runs=(name,), shares=(sum(shares) / len(shares),), steps=(step,), samples=4)
        for name, shares, step in (("a", left, 60), ("c", right, 20))
    )
    return PairedTest(
        mode="sampled",
        problems=len(left),
        difference=found.difference,
        low=found.low,
        high=found.high,
        p_value=found.p_value,
        method="paired permutation test",
        own=own,
        other=other,
    )


SHARE = st.integers(0, 4).map(lambda right: right / 4)


def number(text: str) -> float:
    return float(text.replace("−", "-").replace("<", ""))


@given(st.lists(st.tuples(SHARE, SHARE), min_size=2, max_size=40))
def test_the_printed_interval_holds_0_exactly_when_the_printed_p_is_not_below_5_percent(
    pairs: list[tuple[float, float]],
) -> None:
    test = compared([one for one, _ in pairs], [other for _, other in pairs])
    said = sentence_of(test, NAMES)
    p = number(re.findall(r"p [=<] ([.0-9]+)[.,]", said)[0])
    if "get as many right" in said:
        assert p >= 0.05
        return
    low, high = map(number, re.findall(r"95%: (\S+) to ([^)]+)\)", said)[0])
    assert (" is better than " in said) == (p < 0.05) == (low > 0 or high < 0)
    first = "run-a" if test.own.share > test.other.share else "run-c"
    assert re.search(rf"(^{first} is better|for {first} over)", said)
    # steps are in the order of the runs
    assert f"step{'s 60 and 20' if first == 'run-a' else 's 20 and 60'};" in said


def test_in_a_tie_too_the_steps_are_in_the_order_of_the_names() -> None:
    told = sentence_of(compared([0.0, 1.0], [1.0, 0.0]), NAMES)
    assert told.startswith("run-a and run-c get as many right, 50%")
    assert "steps 60 and 20;" in told


def test_settings_are_named_by_what_their_seeds_share() -> None:
    test = compared([1.0] * 10, [0.0] * 10)
    own = Evaluated(runs=("a", "b"), shares=(0.9, 0.8), steps=(60, 60), samples=1)
    other = Evaluated(runs=("c", "d"), shares=(0.5, 0.52), steps=(60, 60), samples=1)
    said = sentence_of(replace(test, own=own, other=other), NAMES)
    # two settings end in `beta`, so both are named in full
    assert said.startswith(
        "algorithm.beta 0.4, optimizer.beta 1, hard yes (2 seeds) is better than "
        "algorithm.beta 0.04, optimizer.beta 2, hard no (2 seeds) "
        "in sampled answers: +100 points"
    )
    assert ", p = .002. Right: 85 and 51% on 10 held-out problems, sampled once, step 60; " in said


def test_names_leave_out_minor_settings_unless_only_these_tell_them_apart() -> None:
    beta = SettingDifference(path="algorithm.beta", values=(0.4, 0.4, 0.04, 0.04))
    kept = SettingDifference(
        path="record.tokens", values=("all", "all", "none", "none"), minor=True
    )
    found: Any = SimpleNamespace(**vars(NAMES) | {"differing": (beta, kept)})
    assert setting_name(found, ("c", "d")) == "beta 0.04 (2 seeds)"
    found.differing = (kept,)
    assert setting_name(found, ("c", "d")) == "tokens none (2 seeds)"
    found.differing = (replace(beta, values=(0.4,) * 4), kept)
    assert setting_name(found, ("c", "d")) == "beta 0.4, tokens none (2 seeds)"


@pytest.mark.parametrize(
    ("runs", "step", "said"),
    [(2, 6.0, ("2 of 2 seeds", "6")), (1, None, ("1 of 2 seeds", "–")), (0, None, ("never", ""))],
)
def test_a_race_that_half_the_seeds_lost_has_no_median(
    runs: int, step: float | None, said: tuple[str, str]
) -> None:
    own = Evaluated(runs=("a", "b"), shares=(0.9, 0.8), steps=(60, 60), samples=1)
    first = RankedSetting(
        own=own,
        test=None,
        may_be_best=True,
        reached=Reached(runs=2, step=3, tokens=10, seconds=1.0),
    )
    reached = Reached(runs=runs, step=step, tokens=step, seconds=step)
    ranking = Ranking(
        mode="sampled",
        problems=9,
        comparisons=1,
        seeds=True,
        metric="eval/accuracy",
        threshold=0.5,
        settings=(first, replace(first, reached=reached)),
    )
    row = ranking_rows(ranking, NAMES)[1]
    assert (row["reached"], row["step"]) == said
    # of a run without other seeds it is yes or no
    alone = replace(first, own=replace(own, runs=("a",)), reached=reached)
    (single,) = ranking_rows(replace(ranking, settings=(alone,)), NAMES)
    assert single["reached"] == ("yes" if runs else "never")
    assert (row["tokens"], row["time"]) == (("6", "6.0s") if step else (said[1], said[1]))
    # sampled answers come first, as in the verdict
    both: Any = SimpleNamespace(rankings=(replace(ranking, mode="greedy"), ranking))
    assert [item.mode for item in rankings_of(both)] == ["sampled", "greedy"]
    # and the title names on which side of the threshold it is
    assert "goal: at least 50% right" in ranking_title(ranking)
    ranking = replace(ranking, metric="frac_reward_zero_std")
    assert "goal: frac_reward_zero_std at most 0.5" in ranking_title(ranking)


@pytest.mark.parametrize(
    ("p", "text"),
    [
        (0.0004, "p < .001"),
        (0.0117, "p = .012"),
        (0.0498, "p = .0498"),
        (0.05, "p = .050"),
        (0.04999, "p = .04999"),
        (0.5, "p = .500"),
        (1.0, "p = 1.000"),
    ],
)
def test_a_p_value_is_not_rounded_across_its_limit(p: float, text: str) -> None:
    assert probability(p) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.031, "+3.1"), (-0.12, "−12"), (0.0, "0"), (0.0003, "+.03"), (-0.0003, "−.03")],
)
def test_points_have_a_sign_unless_they_are_0(share: float, text: str) -> None:
    assert points(share) == text
