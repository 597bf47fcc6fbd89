"""What accompanies the six choices: entropy, length, truncation, the sampler correction."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_engine.config.recipes import recipe
from grpo_engine.maths.ratio import importance
from grpo_engine.maths.reuse import entropy_control
from grpo_engine.maths.signal import overlong_penalty
from grpo_engine.maths.weight import entropy_floor, totals_of
from tests.engine.maths.helpers import (
    assert_close,
    gradient_of,
    loss_of,
    number,
    numbers,
    random_batch,
)


def test_only_the_most_uncertain_tokens_are_pushed_but_all_are_anchored() -> None:
    # entropies 0..5 on six tokens, top third: the .667-quantile is 3.33, tokens 4 and 5
    batch = random_batch(0, rows=1) | {"mask": mx.ones((1, 6)), "entropy": mx.arange(6.0)[None]}
    how = recipe("off-policy", entropy_top_quantile=1 / 3)
    assert numbers(loss_of(batch, how).terms.updated) == [[False] * 4 + [True] * 2]
    assert numbers(gradient_of(batch, how) != 0) == [[False] * 4 + [True] * 2]
    anchored = recipe("off-policy", entropy_top_quantile=1 / 3, beta=0.1)
    assert numbers(gradient_of(batch, anchored) != 0) == [[True] * 6]


def test_the_floor_of_the_update_rules_in_every_micro_batch() -> None:
    batch = random_batch(1)
    how = recipe("grpo", entropy_top_quantile=0.3)
    totals = totals_of(batch["mask"], recipe=how, entropy=batch["entropy"])
    whole = np.array(loss_of(batch, how).terms.updated)
    assert float(np.array(totals.updated_tokens)) == whole.sum()
    half = {key: array[:4] for key, array in batch.items()}
    assert (np.array(loss_of(half, how, totals=totals).terms.updated) == whole[:4]).all()
    own = np.array(loss_of(half, how).terms.updated)
    assert (own != whole[:4]).any()


def test_totals_know_no_floor_where_all_tokens_are_updated_or_no_entropy_is_given() -> None:
    mask, entropy = mx.ones((2, 3)), mx.ones((2, 3))
    assert totals_of(mask, entropy=entropy).entropy_floor is None
    how = recipe("grpo", entropy_top_quantile=0.3)
    assert totals_of(mask, recipe=how, micro_batches=3).entropy_floor is None
    assert totals_of(mask, recipe=how, micro_batches=3).micro_batches == 3
    with_floor = totals_of(mask, recipe=how, entropy=entropy, micro_batches=3)
    assert with_floor.micro_batches == 3
    assert number(mx.array(with_floor.tokens)) == 6
    assert number(mx.array(with_floor.rows)) == 2


def test_micro_batches_without_a_common_floor_average_their_entropy() -> None:
    batch = random_batch(3, rows=1, columns=4) | {"mask": mx.ones((1, 4))}
    batch["entropy"] = mx.array([[1.0, 2.0, 3.0, 4.0]])
    how = recipe("dr-grpo", entropy_bonus=0.5, entropy_top_quantile=0.5)
    two = totals_of(batch["mask"], micro_batches=2)
    # tokens 3 and 4 are updated: -.5/(2·2)
    found = gradient_of(batch, how, "entropy", totals=two)
    assert_close(found, [[0, 0, -0.125, -0.125]])


@pytest.mark.parametrize(
    ("bonus", "entropy", "expected"),
    [
        (0.1, 0.5, (0.105, 0.105)),  # below the target 1: increased, and applied
        (0.1, 1.0, (0.105, 0.105)),
        (0.1, 1.5, (0.095, 0.0)),  # above it: decreased, and not applied
        (0.003, 1.5, (0.0, 0.0)),
        (0.998, 0.5, (1.0, 1.0)),
    ],
)
def test_the_entropy_bonus_is_steered_to_its_target(
    bonus: float, entropy: float, expected: tuple[float, float]
) -> None:
    assert entropy_control(bonus, entropy, 1.0) == pytest.approx(expected)


def test_the_length_penalty_is_soft_over_its_buffer() -> None:
    # L = 100, buffer 20: 80 is free; 90: (80 - 90)/20 = -.5; 100: -1; more: -1
    lengths = mx.array([0, 80, 85, 90, 100, 120])
    found = numbers(overlong_penalty(lengths, 100, 0.2))
    assert found == pytest.approx([0, 0, -0.25, -0.5, -1, -1], abs=1e-6)


def test_no_buffer_is_no_penalty() -> None:
    assert numbers(overlong_penalty(mx.array([1, 1000]), 100, 0.0)) == [0, 0]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token_truncate", [0.85, 0.9, 1.25, 3]),
        ("token_mask", [0, 0.9, 1.25, 0]),
        # .8 x .9 x 1.25 x 4 = 3.6
        ("sequence_truncate", [3, 3, 3, 3]),
        ("sequence_mask", [0, 0, 0, 0]),
    ],
)
def test_each_mode_holds_or_leaves_out_tokens_or_completions(
    mode: str, expected: list[float]
) -> None:
    x = mx.log(mx.array([[0.8, 0.9, 1.25, 4.0]]))
    how = recipe("grpo", importance_cap=3.0, importance_floor=0.85, importance_mode=mode)
    assert numbers(importance(x, mx.ones((1, 4)) > 0, how))[0] == pytest.approx(expected, rel=1e-5)
    # without the last token the product is .9, inside both caps
    inside = mx.array([[1, 1, 1, 0]]) > 0
    found = numbers(importance(x * inside, inside, how))[0][:3]
    assert found == pytest.approx(expected[:3] if "token" in mode else [0.9] * 3, rel=1e-5)


def test_worse_completions_far_from_their_sampler_leave_the_push_and_stay_in_the_average() -> None:
    # log π_sampler/π per token: .3 .1 (mean .2) and -.5 .1 (mean -.2)
    new = mx.array([[-1.0, -1.0], [-1.0, -1.0]])
    sampler = mx.array([[-0.7, -0.9], [-1.5, -0.9]])
    batch: dict[str, Any] = {
        "new": new,
        "old": new,
        "ref": None,
        "mask": mx.ones((2, 2)) > 0,
        "sampler": sampler,
        "group_ids": None,
    }
    how = recipe("dr-grpo", off_policy_mask=0.15, weight="per_sequence")
    kept = {}
    for worth in ([-1.0, -1.0], [1.0, -1.0], [0.0, 1.0]):
        found = loss_of(batch, how, advantages=mx.array(worth))
        kept[tuple(worth)] = numbers(found.terms.on_policy)
    assert kept == {
        (-1.0, -1.0): [[False] * 2, [True] * 2],
        (1.0, -1.0): [[True] * 2] * 2,
        (0.0, 1.0): [[True] * 2] * 2,
    }
    # one of two rows remains: its two tokens weigh 1/2 of 1/2 each, A = -1
    left = loss_of(batch, how, advantages=mx.array([-1.0, -1.0]))
    assert number(left.value) == pytest.approx(0.5)
    assert numbers(left.terms.weight) == [[0.25, 0.25]] * 2


@given(
    st.lists(st.tuples(st.floats(0, 10), st.booleans()), min_size=1, max_size=12),
    st.floats(0.01, 1),
)
def test_the_floor_of_the_top_share_is_a_quantile(
    tokens: list[tuple[float, bool]], share: float
) -> None:
    entropy, mask = np.array([e for e, _ in tokens]), np.array([m for _, m in tokens])
    found = entropy_floor(mx.array(entropy[None]), mx.array(mask[None]), share)
    if mask.any():
        assert_close(found, np.quantile(entropy[mask], 1 - share), rtol=1e-4, atol=1e-4)
