"""Refills judge a group by whether its answers are right, not by their length."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_engine.events import (
    Event,
    RewardValue,
    RunFailed,
    RunFinished,
    StepSkipped,
)
from grpo_engine.maths.advantage import advantages
from grpo_engine.rewards.scoring import OVERLONG, Scores, with_overlong
from grpo_engine.training.sampling import alike_in
from tests.engine.runs import events_of, groups_of, settings, write_world

WRONG = """
def accuracy(completions, **_):
    return [0.0 for _ in completions]

def letters(completions, **_):
    return [sum(c.isalpha() for c in text) / 12 for text in completions]
"""
CASES: dict[str, tuple[list[str], dict[str, Any], str]] = {
    # functions, settings of the algorithm, why a group is replaced
    "accuracy": (["accuracy"], {}, "all wrong, replaced"),
    "accuracy decides alone": (["accuracy", "letters"], {}, "all wrong, replaced"),
    "no accuracy": (["letters"], {}, ""),
    "total": (["accuracy"], {"refill_on": "total"}, ""),
    "another function": (["accuracy", "letters"], {"refill_on": "letters"}, ""),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_world(tmp_path_factory.mktemp("world"))
    (folder / "wrong.py").write_text(WRONG)
    return folder


def dapo_run(world: Path, folder: Path, functions: list[str], **changes: Any) -> list[Event]:
    """One step in which every answer that may get long pays for its length."""
    algorithm = {"recipe": "dapo", "refill_rounds": 1, "overlong_buffer": 1.0, **changes}
    rewards = {"functions": [f"{world}/wrong.py:{name}" for name in functions]}
    rollout = {"stop": [*"abcdefgh"]}  # random answers then have different lengths
    changed = settings(world, steps=1, rewards=rewards, algorithm=algorithm, rollout=rollout)
    return events_of(changed, folder)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_wrong_answers_of_different_lengths_are_replaced(
    world: Path, tmp_path: Path, case: str
) -> None:
    functions, changes, why = CASES[case]
    events = dapo_run(world, tmp_path, functions, **changes)
    assert isinstance(events[-1], RunFinished), events[-1]
    groups = groups_of(events)
    varied = [g for g in groups if len({rollout.reward for rollout in g.rollouts}) > 1]
    assert varied
    assert {group.no_signal for group in varied} == {why}
    if why:
        assert [group.refill for group in groups] == [0, 0, 1, 1]
    assert any(isinstance(event, StepSkipped) for event in events) == bool(why)


def test_a_function_that_the_run_does_not_have_is_refused_before_training(
    world: Path, tmp_path: Path
) -> None:
    (*_, end) = events = dapo_run(world, tmp_path, ["letters"], refill_on="acc")
    assert isinstance(end, RunFailed)
    assert end.error == "ConfigError"
    assert end.message == (
        "refill_on: 'acc' is not a reward function of the run; its functions are letters, overlong"
    )
    assert not groups_of(events)


def scored(rewards: list[float | None], lengths: list[int]) -> Scores:
    """Scores by one function, `exact`, with the length penalty of a limit of 8 tokens."""
    rows = tuple((RewardValue(name="exact", value=value, weight=1.0),) for value in rewards)
    return with_overlong(Scores(rewards=rows), lengths, 8, 0.5)


def test_eight_wrong_answers_of_which_one_is_long_give_nothing_to_learn_from() -> None:
    # a limit of 8 tokens, of which the last 4 cost: penalties 0 seven times and (4 - 8)/4 = -1;
    # mean -.125, sample std √((7·.125² + .875²)/7) = .35355: -.875/.35365 = -2.474
    found = scored([0.0] * 8, [1] * 7 + [8])
    pushed = advantages(
        [[reward.value for reward in row] for row in found.rewards], [0] * 8, "grpo", [1.0, 1.0]
    ).values
    assert pushed[7].item() == pytest.approx(-2.474, abs=1e-3)
    assert alike_in(found, "accuracy", "exact") == "exact"
    assert alike_in(found, "accuracy", "") == "total"
    assert alike_in(found, "total", "exact") == ""
    assert alike_in(found, OVERLONG, "exact") == ""


ANSWER = st.tuples(st.sampled_from([None, 0.0, 0.5, 1.0]), st.integers(1, 8))


@given(st.lists(ANSWER, min_size=2, max_size=8), st.sampled_from(["exact", ""]))
def test_the_length_of_answers_never_decides_what_is_replaced(
    answers: list[tuple[float | None, int]], accuracy: str
) -> None:
    rewards = [reward for reward, _ in answers]
    found = scored(rewards, [length for _, length in answers])
    # without any function that says right or wrong, an answer without a reward has no total either
    differ = len({reward for reward in rewards if reward is not None}) > 1
    assert bool(alike_in(found, "accuracy", accuracy)) == (not differ)
    assert bool(alike_in(found, "exact", "")) == (not differ)


def test_steps_tell_answers_apart_when_steps_are_what_is_rewarded() -> None:
    rows = tuple((RewardValue(name="accuracy", value=0.5, weight=1.0),) for _ in range(2))
    found = Scores(rewards=rows, steps=(((0, 0.0), (3, 1.0)), ((0, 1.0), (3, 0.0))))
    assert alike_in(found, "accuracy", "accuracy") == ""
