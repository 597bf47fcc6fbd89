"""A teacher's part of the advantages: how much likelier it finds each token than the policy did."""

from typing import Any

import mlx.core as mx
import pytest

from grpo_engine.config.recipes import recipe
from grpo_engine.errors import MathsError, RecipeError
from grpo_engine.maths.advantage import advantages, reward_metrics
from tests.engine.maths.helpers import assert_close, numbers

GROUPS = mx.array([0, 0])
TOKENS: dict[str, Any] = {
    "mask": mx.ones((2, 3)),
    "old": mx.zeros((2, 3)),
    "teacher": mx.zeros((2, 3)),
}


def test_a_token_is_worth_what_the_teacher_finds_it_likelier() -> None:
    # log(.5/.25) = .6931, log(.1/.4) = -1.3863; the third token of the first answer is padding
    old = mx.log(mx.array([[0.25, 0.4, 0.5], [0.5, 0.5, 0.5]]))
    teacher = mx.log(mx.array([[0.5, 0.1, 0.9], [0.5, 0.25, 1.0]]))
    mask = mx.array([[1, 1, 0], [1, 1, 1]])
    tokens: dict[str, Any] = {"mask": mask, "old": old, "teacher": teacher}
    expected = [[0.6931, -1.3863, 0], [0, -0.6931, 0.6931]]
    alone = advantages([[1.0], [0.0]], GROUPS, "distill", **tokens)
    assert_close(alone.values, expected, atol=1e-4)
    # group_mean of 1 and 0 is +.5 and -.5; padding gets the answer's, as where [B] is broadcast
    both = recipe("dr-grpo", teacher_weight=0.5)
    added = advantages([[1.0], [0.0]], GROUPS, both, **tokens)
    expected = [[0.5 + 0.3466, 0.5 - 0.6931, 0.5], [-0.5, -0.5 - 0.3466, -0.5 + 0.3466]]
    assert_close(added.values, expected, atol=1e-4)
    assert alone.has_signal.tolist() == [True, True]


def test_the_part_of_a_teacher_is_a_constant() -> None:
    def total(old: mx.array, teacher: mx.array) -> mx.array:
        tokens: dict[str, Any] = {"mask": mx.ones((2, 3)), "old": old, "teacher": teacher}
        return advantages([1.0, 0.0], GROUPS, "distill", **tokens).values.sum()

    for slope in mx.grad(total, argnums=(0, 1))(TOKENS["old"], TOKENS["teacher"]):
        assert numbers(slope) == [[0.0] * 3] * 2


def test_a_teacher_needs_no_reward_function() -> None:
    computed = advantages([[], []], GROUPS, "distill", **TOKENS)
    assert "frac_reward_zero_std" not in reward_metrics([[], []], computed, [])


def test_settings_that_a_teacher_excludes_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"signal=none leaves the push to a teacher"):
        recipe("distill", teacher_weight=0.0)
    with pytest.raises(
        RecipeError, match=r"teacher_weight=1\.0 has no effect: .*a trust that reads more"
    ):
        recipe("how-much", teacher_weight=1.0)
    with pytest.raises(RecipeError, match=r"signal=none does not read"):
        recipe("distill", beta=0.1, anchor_place="reward")


@pytest.mark.parametrize("name", ["mask", "old", "teacher"])
def test_the_arrays_of_a_teacher_are_needed_and_fit(name: str) -> None:
    message = rf"recipe distill \(signal=none, teacher_weight=1\) reads {name}: give {name}"
    with pytest.raises(MathsError, match=message):
        advantages([1.0, 0.0], GROUPS, "distill", **TOKENS | {name: None})
    if name != "mask":
        with pytest.raises(MathsError, match=rf"^{name} must have shape \(2, 3\), got \(2, 1\)"):
            advantages([1.0, 0.0], GROUPS, "distill", **TOKENS | {name: mx.zeros((2, 1))})
