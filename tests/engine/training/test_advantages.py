"""Which rollouts of a step have a gradient."""

import pytest

from grpo_engine.config.recipes import recipe
from grpo_engine.events import RewardValue
from grpo_engine.rewards.right import Right
from grpo_engine.rewards.scoring import Scores
from grpo_engine.rollouts.types import Trajectory
from grpo_engine.tasks.base import Example
from grpo_engine.training.advantages import rows_to_train, step_advantages
from grpo_engine.training.samples import OldScores, SampledGroup, gather


def group(index: int, lengths: list[int], rewards: list[float]) -> SampledGroup:
    """A group of answers that are this long and scored like this."""
    rollouts = [
        Trajectory(
            key=str(index),
            group=index,
            index=n,
            attempt=0,
            prompt_ids=(1,),
            ids=(2,) * length,
            logprobs=(-1.0,) * length,
            raw_logprobs=(-1.0,) * length,
            finish="stop",
            text="",
        )
        for n, length in enumerate(lengths)
    ]
    scores = Scores(
        rewards=tuple((RewardValue(name="f", value=value, weight=1.0),) for value in rewards)
    )
    return SampledGroup(
        index=index,
        example=Example(key=str(index), prompt=""),
        prompt_ids=(1,),
        prompt_text="",
        attempt=0,
        rollouts=rollouts,
        scores=scores,
        right=Right(""),
        format="",
    )


@pytest.mark.parametrize(
    ("lengths", "beta", "rows"),
    [
        ([[3, 2], [2, 1]], 0.0, [2, 3]),  # the first group is scored alike
        ([[3, 2], [2, 1]], 0.1, [0, 1, 2, 3]),  # the KL penalty pushes it too
        ([[3, 2], [0, 0]], 0.0, []),  # the group with a signal has no token to push
        ([[0, 0], [0, 0]], 0.1, []),
    ],
)
def test_rows_are_trained_if_they_can_have_a_gradient(
    lengths: list[list[int]], beta: float, rows: list[int]
) -> None:
    chosen = recipe("grpo", beta=beta)
    samples = gather([group(0, lengths[0], [1, 1]), group(1, lengths[1], [0, 1])], chosen)
    advantages = step_advantages(samples, OldScores(), chosen, 1)
    assert rows_to_train(samples, advantages, chosen, 0.0) == rows
