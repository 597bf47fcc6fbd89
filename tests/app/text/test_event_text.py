"""Events in a sentence."""

from math import nan

import pytest

from grpo_engine.events import EvaluationFinished
from grpo_tui.app.text.event_text import sentence


@pytest.mark.parametrize(
    ("reward", "expected"), [(0.5, ", reward .5"), (nan, ", no answer has a score")]
)
def test_an_evaluation_says_its_reward_if_there_is_one(reward: float, expected: str) -> None:
    event = EvaluationFinished(
        step=1,
        moment="after",
        mode="greedy",
        problems=4,
        samples=1,
        metrics={"eval/reward": reward},
        rows=(),
        seconds=1.0,
    )
    assert sentence(event).endswith(f"4 held-out problems (greedy){expected}")


def test_a_reward_has_the_number_of_answers_that_it_is_of() -> None:
    event = EvaluationFinished(
        step=1,
        moment="after",
        mode="greedy",
        problems=4,
        samples=1,
        metrics={"eval/reward": 0.5, "eval/scored/reward": 3.0},
        rows=(),
        seconds=1.0,
    )
    assert sentence(event).endswith("(greedy), reward .5 (n=3)")
