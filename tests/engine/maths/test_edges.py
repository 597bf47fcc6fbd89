"""Single tokens, lone completions, equal scores, exact ties: the limits of the formulas."""

import math
from dataclasses import replace

import mlx.core as mx
import pytest

from grpo_engine.config.recipes import recipe
from grpo_engine.maths.advantage import advantages
from grpo_engine.maths.metrics import target_metrics
from grpo_engine.maths.ratio import importance, near_sampler
from grpo_engine.maths.trust import FREE, cispo, clip, targets_of, unbounded, vespo
from tests.engine.maths.helpers import assert_close, loss_of, number, numbers, random_batch


def test_a_completion_without_siblings_is_its_own_mean() -> None:
    found = advantages([3.0, 0.0, 1.0], [0, 1, 1], "grpo")
    assert_close(found.group_mean, [3.0, 0.5, 0.5])
    assert numbers(found.values)[0] == 0.0


def test_what_never_stops_is_free_and_bounded_only_by_the_clamp() -> None:
    push = unbounded(mx.array([[0.5, -2.0]]))
    assert numbers(push.side_BT) == [[FREE, FREE]]
    capped = cispo(mx.array([[2.0]]), mx.array([[1.0]]), mx.array([[-1.0]]), 2.0)
    assert numbers(capped.side_BT) == [[FREE]]  # the cap is reached, not passed
    assert_close(capped.low_BT, math.exp(-60), atol=0)


def test_a_ratio_on_its_bound_is_not_stopped() -> None:
    push = clip(mx.array([[0.5, 1.5]]), mx.array([[-1.0, 1.0]]), 0.5, 1.5)
    assert numbers(push.side_BT) == [[FREE, FREE]]


def test_probabilities_above_one_by_rounding_are_one() -> None:
    old, signs = mx.array([[1e-3], [-1.0]]), mx.array([1.0, -1.0])
    found = targets_of(old, signs, mx.ones((2, 1)) > 0, mx.array([[1], [2]]), mx.array([0, 0]))
    assert numbers(found.low_BT)[0] == [1.0]


def test_a_target_hit_at_the_edge_of_its_tolerance_is_reached() -> None:
    terms = loss_of(random_batch(0, rows=2, columns=1), "how-much").terms
    one = mx.ones((2, 1))
    # p = ratio·low = .5·1.5 = .75, t = .5: beyond it by .25 = .5·t.
    exact = replace(
        terms, mask=one > 0, advantage=one, ratio=1.5 * one, low=0.5 * one, target=0.5 * one
    )
    assert number(target_metrics(exact, 0.5)["target/reached"][0]) == 2.0


def test_an_importance_weight_on_a_bound_is_not_left_out_and_is_a_constant() -> None:
    zero, mask = mx.zeros((1, 1)), mx.ones((1, 1)) > 0  # w = e^0 = 1
    for floor, cap in ((1.0, 2.0), (0.0, 1.0), (0.0, 2.0)):
        for mode in ("token_mask", "token_truncate"):
            how = recipe("grpo", importance_mode=mode, importance_floor=floor, importance_cap=cap)
            assert numbers(importance(zero, mask, how)) == [[1.0]]
            slope = mx.grad(lambda x, how=how: importance(x, mask, how).sum())(zero)
            assert numbers(slope) == [[0.0]]


def test_an_answer_on_the_limit_of_the_off_policy_mask_is_near() -> None:
    # log π_sampler/π = .5 for its one token
    new, worse, mask = mx.array([[-1.0]]), mx.array([[-1.0]]), mx.ones((1, 1)) > 0
    assert numbers(near_sampler(new, new + 0.5, worse, mask, 0.5)) == [[True]]


def test_a_gate_beyond_float32_is_zero() -> None:
    # e^(60·10) overflows
    how, one = recipe("vespo", vespo_k_pos=60.0, vespo_lambda_pos=1e-4), mx.ones((1, 1))
    push = vespo(10 * one, one, -one, how)
    assert push.gate_BT is not None
    assert (numbers(push.gate_BT), numbers(push.objective_BT)) == ([[0.0]], [[0.0]])


@pytest.mark.parametrize("score", [1.0, 0.0])
def test_a_group_that_no_function_tells_apart_is_worth_exactly_nothing(score: float) -> None:
    how = recipe("reinforce-baseline", combine="normalize_then_sum")
    rewards = [[score], [score], [score - 1], [score]]
    found = numbers(advantages(rewards, [0, 0, 1, 1], how).values)
    assert found[:2] == [0.0, 0.0]
    assert found[2] < 0 < found[3]


def test_targets_are_constants_of_the_update() -> None:
    signs, ids = mx.array([1.0, -1.0]), mx.array([[1], [2]])

    def total(old: mx.array) -> mx.array:
        found = targets_of(old, signs, mx.ones((2, 1)) > 0, ids, mx.array([0, 0]))
        return found.probability_BT.sum() + found.high_BT.sum()

    assert numbers(mx.grad(total)(mx.array([[-1.5], [-0.7]]))) == [[0.0], [0.0]]
