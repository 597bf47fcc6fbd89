"""The conditions that end the passes over the same rollouts."""

import mlx.core as mx
import pytest

from grpo_engine.config.recipes import recipe
from grpo_engine.maths.metrics import metrics
from grpo_engine.maths.reuse import stop_reason
from tests.engine.maths.helpers import loss_of, number, random_batch


@pytest.mark.parametrize(
    ("stop", "metric", "stopping", "going_on", "words"),
    [
        ("all_at_bound", "at_bound", 99, 98, "99% of the pushed tokens are at their bound"),
        ("kl", "kl_to_old", 6, 5, "KL to the sampling policy is above 0.05 nats per token"),
        (
            "target",
            "target/reached",
            99,
            98,
            "99% of the pushed tokens are within 2% of their target",
        ),
    ],
)
def test_a_share_of_the_tokens_stops_the_passes(
    stop: str, metric: str, stopping: float, going_on: float, words: str
) -> None:
    how = recipe("how-much", passes=4) if stop == "target" else recipe("grpo", passes=4, stop=stop)
    assert stop_reason(how, {metric: (stopping, 100)}, 1.0) == words
    assert stop_reason(how, {metric: (going_on, 100)}, 1.0) is None
    nothing_pushed = stop_reason(how, {metric: (0, 0)}, 1.0)
    assert nothing_pushed == (None if stop == "kl" else words)


@pytest.mark.parametrize(
    ("objective", "before", "flat"),
    [
        (1.02, 1.0, False),  # .02 > .01·1.02
        (1.005, 1.0, True),
        (0.9, 1.0, True),  # it fell
        (0.02, 0.0, False),  # from zero, as after a first pass
        (0.0, 0.0, True),
        (1.0, 0.99005, True),
        (100.0, 99.0, True),  # a gain of 1 = .01·100, and more than .01·99
        (1.0, 0.98995, False),
        (-0.98, -1.0, False),  # .02 > .01·1
        (-0.995, -1.0, True),
        (-1.1, -1.0, True),
        (1.0, None, False),  # no pass before it
    ],
)
def test_the_objective_is_flat_when_it_grows_by_less_than_its_share(
    objective: float, before: float | None, flat: bool
) -> None:
    how = recipe("grpo", passes=4, stop="plateau", stop_plateau=0.01)
    words = "the objective grew by less than 0.01 of itself"
    assert stop_reason(how, {}, objective, before) == (words if flat else None)


def test_rules_read_the_metrics_of_the_loss() -> None:
    batch = random_batch(0) | {"advantages": mx.ones(8)}
    batch["old"] = batch["new"] - 1  # every ratio e, pushed up: all at the bound
    how = recipe("grpo", passes=4, stop="all_at_bound")
    found = metrics(loss_of(batch, how).terms, how)
    measured = {name: (number(a), number(b)) for name, (a, b) in found.items()}
    assert stop_reason(how, measured, 0.0) is not None
    assert stop_reason(recipe("grpo", passes=4, stop="kl"), measured, 0.0) is not None
    assert stop_reason(recipe("grpo", passes=4), measured, 1.0, 1.0) is None
