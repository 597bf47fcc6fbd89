"""PPO's critic: the backward pass for advantages, whitening, and the value loss."""

from typing import Any

import mlx.core as mx
import pytest

from grpo_engine.config.recipes import recipe
from grpo_engine.maths.advantage import advantages
from grpo_engine.maths.critic import gae, token_rewards, value_loss, whiten
from tests.engine.maths.helpers import assert_close, numbers

ALL = mx.array([[True, True, True]])


def test_advantages_are_swept_backwards() -> None:
    # γ = .9, λ = .5, r = 0 0 1, V = .5 .4 .3
    # δ: 1 - .3 = .7; .9·.3 - .4 = -.13; .9·.4 - .5 = -.14
    # A: .7; -.13 + .45·.7 = .185; -.14 + .45·.185 = -.05675; returns A + V
    rewards, values = mx.array([[0.0, 0.0, 1.0]]), mx.array([[0.5, 0.4, 0.3]])
    worth, returns = gae(rewards, values, ALL, 0.9, 0.5)
    assert numbers(worth)[0] == pytest.approx([-0.05675, 0.185, 0.7], abs=1e-6)
    assert numbers(returns)[0] == pytest.approx([0.44325, 0.585, 1.0], abs=1e-6)


def test_no_tokens_give_no_advantages() -> None:
    worth, returns = gae(mx.zeros((2, 0)), mx.zeros((2, 0)), mx.zeros((2, 0)) > 0, 1.0, 1.0)
    assert worth.shape == returns.shape == (2, 0)


def test_the_score_comes_with_the_last_token_and_every_token_pays() -> None:
    mask = mx.array([[True, True, False], [False, False, False], [True, False, True]])
    penalty = mx.array([[0.1, 0.2, 9.0]] * 3)
    found = token_rewards(mx.array([1.0, 2.0, 3.0]), penalty, mask)
    assert_close(found, [[-0.1, 0.8, 0], [0, 0, 0], [-0.1, 0, 3 - 9]])


@pytest.mark.parametrize("value", [0.1, 1e30, 0.0])
def test_whitening_what_does_not_differ_gives_a_literal_zero(value: float) -> None:
    found = whiten(mx.full((1, 7), value), mx.array([[True] * 5 + [False] * 2]))
    assert numbers(found) == [[0.0] * 7]
    assert numbers(whiten(mx.full((1, 2), value), mx.array([[False, False]]))) == [[0.0, 0.0]]


def test_whitening_adds_its_epsilon_to_the_deviation() -> None:
    # 0 and 2e-8: mean 1e-8, population std 1e-8: ±1e-8/(1e-8 + 1e-8) = ±.5
    found = whiten(mx.array([[0.0, 2e-8]]), mx.array([[True, True]]))
    assert numbers(found)[0] == pytest.approx([-0.5, 0.5], abs=1e-5)


@pytest.mark.parametrize("scale", [1e30, 1e-4])
def test_whitening_takes_numbers_of_any_size(scale: float) -> None:
    found = whiten(mx.array([[scale, 3 * scale]]), mx.array([[True, True]]))
    assert numbers(found)[0] == pytest.approx([-1, 1], abs=2e-4)


@pytest.mark.parametrize(
    ("value", "before", "goal", "clip", "expected"),
    [
        (2.0, 1.0, 0.0, 0.2, 2.0),  # max(4, 1.2² = 1.44)/2
        (2.0, 1.0, 3.0, 0.2, 1.62),  # max(1, (1.2 - 3)² = 3.24)/2
        (0.0, 1.0, -1.0, 0.2, 1.62),  # max(1, (.8 + 1)² = 3.24)/2
        (1.1, 1.0, 0.0, 0.2, 0.605),  # inside: 1.1²/2
        (2.0, 1.0, 3.0, 0.0, 0.5),  # no clip: 1/2
    ],
)
def test_the_critic_pays_for_the_worse_of_its_value_and_the_clipped_one(
    value: float, before: float, goal: float, clip: float, expected: float
) -> None:
    found = value_loss(mx.array(value), mx.array(before), mx.array(goal), clip)
    assert numbers(found) == pytest.approx(expected, abs=1e-6)


def test_ppo_pays_the_distance_per_token_and_whitens_over_the_update() -> None:
    # β = .5, x = .2 on every token: penalty .1; row 0: r = -.1, 1 - .1 = .9; row 1: 0 - .1
    # V = 0, γ = λ = 1: A = .8 .9 | -.1; mean .53333, squares .07111 .13444 .40111 = .60667,
    # population std √.20222 = .44969: .59300 .81538 -1.40838
    how = recipe("ppo", beta=0.5, lam=1.0)
    mask = mx.array([[1, 1], [1, 0]])
    old, zero = mx.full((2, 2), -1.0), mx.zeros((2, 2))
    given: dict[str, Any] = {"mask": mask, "old": old, "ref": old - 0.2, "values": zero}
    found = advantages([[1.0], [0.0]], [0, 0], how, **given)
    assert_close(found.values, [[0.59300, 0.81538], [-1.40838, 0]], atol=2e-5)
    assert found.returns is not None
    assert_close(found.returns, [[0.8, 0.9], [-0.1, 0]])
    plain = advantages([[1.0], [0.0]], [0, 0], recipe(how, whiten=False), **given)
    assert_close(plain.values, [[0.8, 0.9], [-0.1, 0]])


def test_a_completion_without_a_reward_teaches_neither_policy_nor_critic() -> None:
    how = recipe("ppo", beta=0.0)
    values = mx.array([[0.3, 0.4], [0.5, 0.6], [0.1, 0.2]])
    mask = mx.ones((3, 2))
    found = advantages([[1.0], [None], [0.0]], [0, 0, 0], how, mask=mask, values=values)
    alone = advantages([[1.0], [0.0]], [0, 0], how, mask=mask[:2], values=values[::2])
    assert numbers(found.values[1]) == [0.0, 0.0]
    assert_close(found.values[::2], alone.values)
    assert found.returns is not None
    assert_close(found.returns[1], values[1])
