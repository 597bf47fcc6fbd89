"""Events in a sentence."""

from dataclasses import replace
from math import nan

import pytest

from grpo_engine.events import CheckpointSaved, EvaluationFinished
from grpo_tui.app.text.event_text import sentence


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ({"eval/reward": 0.5}, ", reward .5"),
        ({"eval/reward": nan}, ", no answer has a score"),
        ({"eval/reward": 0.5, "eval/scored/reward": 3.0}, ", reward .5 (n=3)"),
    ],
)
def test_an_evaluation_says_its_reward_if_there_is_one_and_of_how_many_answers(
    metrics: dict[str, float], expected: str
) -> None:
    event = EvaluationFinished(
        step=1,
        moment="after",
        mode="greedy",
        problems=4,
        samples=1,
        metrics=metrics,
        rows=(),
        seconds=1.0,
    )
    assert sentence(event).endswith(f"4 held-out problems (greedy){expected}")
    # Another trainer's means, of nobody knows how many problems.
    assert sentence(replace(event, problems=0)).startswith("held-out (greedy)")


@pytest.mark.parametrize(
    ("best", "best_by", "expected"),
    [
        (False, "", "saved"),
        (True, "", "saved, the best checkpoint so far"),  # an older run
        (True, "eval/accuracy", "saved, the best checkpoint so far by held-out accuracy"),
        (True, "eval/reward", "saved, the best checkpoint so far by held-out reward"),
    ],
)
def test_the_best_checkpoint_says_by_which_measure(best: bool, best_by: str, expected: str) -> None:
    saved = CheckpointSaved(step=20, path="", best=best, seconds=1.0, best_by=best_by)
    assert sentence(saved) == f"checkpoint of step 20 {expected}"
