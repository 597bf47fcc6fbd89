"""Which rollouts of a step have a gradient."""

import pytest

from grpo_engine.config.recipes import recipe
from grpo_engine.events import RewardValue
from grpo_engine.rewards.scoring import Scores
from grpo_engine.training.advantages import rows_to_train, step_advantages
from grpo_engine.training.samples import OldScores, SampledGroup, gather
from tests.engine.training.builders import sampled, trajectory


def group(index: int, lengths: list[int], rewards: list[float]) -> SampledGroup:
    """A group of completions that are this long and scored like this."""
    rollouts = [trajectory(index, n, length) for n, length in enumerate(lengths)]
    rows = tuple((RewardValue(name="f", value=value, weight=1.0),) for value in rewards)
    return sampled(index, rollouts, Scores(rewards=rows))


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
