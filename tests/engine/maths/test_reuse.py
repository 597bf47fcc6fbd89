"""The conditions that end the passes over the same rollouts."""

from typing import Any

import mlx.core as mx
import pytest

from grpo_engine.config.recipes import recipe
from grpo_engine.maths.metrics import metrics
from grpo_engine.maths.reuse import (
    kl_passed,
    objective_flat,
    share_stopped,
    stop_reason,
)
from tests.engine.maths.helpers import loss_of, number, random_batch


def test_all_at_bound_counts_pushed_tokens() -> None:
    assert share_stopped((99.0, 100.0), 0.99)
    assert not share_stopped((98.0, 100.0), 0.99)
    assert share_stopped((0.0, 0.0), 0.99)  # nothing is pushed


def test_kl_is_compared_per_token() -> None:
    assert kl_passed((6.0, 100.0), 0.05)
    assert not kl_passed((5.0, 100.0), 0.05)
    assert not kl_passed((0.0, 0.0), 0.05)


@pytest.mark.parametrize(
    ("objective", "before", "flat"),
    [
        (1.02, 1.0, False),  # .02 > .01·1.02
        (1.005, 1.0, True),
        (0.9, 1.0, True),  # it fell
        (0.02, 0.0, False),  # from zero, as after a first pass
        (0.0, 0.0, True),
        (1.0, 0.99005, True),
        (1.0, 0.98995, False),
        (-0.98, -1.0, False),  # .02 > .01·1
        (-0.995, -1.0, True),
        (-1.1, -1.0, True),
    ],
)
def test_the_objective_is_flat_when_it_grows_by_less_than_its_share(
    objective: float, before: float, flat: bool
) -> None:
    assert objective_flat(objective, before, 0.01) is flat


MEASURED = {
    "at_bound": (100.0, 100.0),
    "kl_to_old": (10.0, 100.0),
    "target/reached": (100.0, 100.0),
}
STILL = {"at_bound": (1.0, 100.0), "kl_to_old": (1.0, 100.0), "target/reached": (1.0, 100.0)}


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("grpo", {"stop": "all_at_bound"}, "99% of the pushed tokens are at their bound"),
        ("grpo", {"stop": "kl"}, "KL to the sampling policy is above 0.05 nats per token"),
        ("grpo", {"stop": "plateau"}, "the objective grew by less than 0.001 of itself"),
        ("how-much", {}, "99% of the pushed tokens are within 2% of their target"),
    ],
)
def test_each_rule_says_why_it_stops(name: str, changes: dict[str, Any], words: str) -> None:
    how = recipe(name, **({"passes": 4} | changes))
    assert stop_reason(how, MEASURED, 1.0, 1.0) == words
    assert stop_reason(how, STILL, 2.0, 1.0) is None


def test_a_recipe_that_never_stops_goes_on() -> None:
    assert stop_reason(recipe("grpo", passes=4), MEASURED, 1.0, 1.0) is None


def test_a_plateau_needs_a_pass_before_it() -> None:
    how = recipe("grpo", passes=4, stop="plateau")
    assert stop_reason(how, MEASURED, 1.0) is None


def test_rules_read_the_metrics_of_the_loss() -> None:
    batch = random_batch(0) | {"advantages": mx.ones(8)}
    batch["old"] = batch["new"] - 1  # every ratio e, pushed up: all at the bound
    how = recipe("grpo", passes=4, stop="all_at_bound")
    found = metrics(loss_of(batch, how).terms, how)
    measured = {name: (number(a), number(b)) for name, (a, b) in found.items()}
    assert stop_reason(how, measured, 0.0) is not None
    assert stop_reason(recipe("grpo", passes=4, stop="kl"), measured, 0.0) is not None
