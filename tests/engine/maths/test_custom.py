"""Functions of users as choices: equal to the built-in ones where they compute the same."""

import math
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_engine.config.recipes import Recipe, recipe
from grpo_engine.errors import EngineError, MathsError, RecipeError
from grpo_engine.maths.advantage import advantages
from grpo_engine.maths.custom import named_in
from tests.engine.maths.custom_choices import RECIPES, written
from tests.engine.maths.helpers import (
    assert_close,
    gradient_of,
    loss_of,
    number,
    numbers,
    random_batch,
)


@given(seed=st.integers(0, 10_000), name=st.sampled_from([*RECIPES]))
def test_recipes_written_as_functions_equal_the_built_in_ones(seed: int, name: str) -> None:
    batch, how = random_batch(seed), recipe(name, **written(name))
    assert set(how.functions) == set(RECIPES[name])
    assert number(loss_of(batch, how).value) == pytest.approx(
        number(loss_of(batch, name).value), rel=1e-6, abs=1e-6
    )
    assert_close(gradient_of(batch, how), gradient_of(batch, name), rtol=1e-6, atol=1e-6)
    groups, rewards = [0] * 4 + [1] * 4, mx.random.uniform(shape=(8,), key=mx.random.key(seed))
    assert_close(advantages(rewards, groups, how).values, advantages(rewards, groups, name).values)


def test_a_function_gets_only_what_it_names() -> None:
    def signal(rewards_PG: mx.array, level: list[int], step: int, other: float = 2.0) -> mx.array:
        return rewards_PG * mx.array(level).reshape(rewards_PG.shape) * step * other

    # r·level·step·2 = 1·1·3·2, 1·2·3·2
    how = recipe("grpo", signal=signal)
    values = advantages([1.0, 1.0], [0, 0], how, extra={"step": 3, "level": [1, 2], "x": 0}).values
    assert numbers(values) == [6.0, 12.0]


def test_a_signal_by_token_is_0_off_the_mask_and_without_a_reward() -> None:
    mask = mx.array([[1, 1], [1, 0], [1, 1]])
    how = recipe("grpo", signal=lambda mask_BT: mx.ones(mask_BT.shape))
    values = advantages([1.0, 0.0, None], [0, 0, 0], how, mask=mask).values
    assert numbers(values) == [[1, 1], [1, 0], [0, 0]]


def test_a_signal_may_name_what_the_completions_and_their_tokens_are() -> None:
    got: dict[str, mx.array] = {}

    def signal(
        rewards_PG: mx.array,
        scored_PG: mx.array,
        rewards_PGF: mx.array,
        lengths_PG: mx.array,
        mask_BT: mx.array,
        old_logprobs_BT: mx.array,
        ref_logprobs_BT: mx.array,
    ) -> mx.array:
        got.update(locals())
        return mx.ones(rewards_PG.shape)

    computed = advantages(
        [[1.0, 2.0], [None, None]],
        [0, 0],
        recipe("grpo", signal=signal),
        mask=mx.array([[1, 1], [1, 0]]),
        old=mx.full((2, 2), -3.0),
        ref=mx.full((2, 2), -4.0),
    )
    assert numbers(computed.values) == [1.0, 0.0]  # the second has no reward
    assert {name: numbers(got[name]) for name in got if name.endswith(("PG", "BT"))} == {
        "rewards_PG": [[3.0, 0.0]],
        "scored_PG": [[1.0, 0.0]],
        "lengths_PG": [[2.0, 1.0]],
        "mask_BT": [[1.0, 1.0], [1.0, 0.0]],
        "old_logprobs_BT": [[-3.0, -3.0]] * 2,
        "ref_logprobs_BT": [[-4.0, -4.0]] * 2,
    }
    assert numbers(got["rewards_PGF"][0, 0]) == [1.0, 2.0]


def test_a_weight_may_name_every_log_probability_and_is_a_constant() -> None:
    got: dict[str, mx.array] = {}

    def weight(
        mask_BT: mx.array,
        logprobs_BT: mx.array,
        old_logprobs_BT: mx.array,
        ref_logprobs_BT: mx.array,
        sampler_logprobs_BT: mx.array,
        entropy_BT: mx.array,
    ) -> mx.array:
        got.update(locals())
        return mask_BT * 2 * mx.exp(logprobs_BT)

    batch: dict[str, Any] = {
        "new": mx.array([[-1.0, -9.0]]),
        "old": mx.array([[-1.5, -9.0]]),
        "ref": mx.array([[-3.0, 0]]),
        "sampler": mx.array([[-4.0, 0]]),
        "entropy": mx.array([[5.0, 0]]),
        "advantages": mx.array([1.0]),
        "mask": mx.array([[1, 0]]),
        "group_ids": None,
    }
    # w·r·A with w = 2·e^-1, r = e^.5 and A = 1; its slope is that of r alone, which is r
    expected = 2 * math.exp(-0.5)
    how = recipe("off-policy", weight=weight)
    assert number(loss_of(batch, how).value) == pytest.approx(-expected)
    names = ("mask", "logprobs", "old_logprobs", "ref_logprobs", "sampler_logprobs", "entropy")
    assert [numbers(got[f"{name}_BT"])[0][0] for name in names] == [1, -1, -1.5, -3, -4, 5]
    assert numbers(gradient_of(batch, how))[0] == pytest.approx([-expected, 0.0])


def test_a_kl_estimate_in_the_reward_may_name_the_mask_and_what_sampled() -> None:
    def anchor(ref_log_ratio_BT: mx.array, mask_BT: mx.array, logprobs_BT: mx.array) -> mx.array:
        return ref_log_ratio_BT + 10 * mask_BT + 100 * logprobs_BT

    # -1 - -3 = 2: 2 + 10·1 + 100·-1 = -88, and 0 off the mask
    how = recipe("rloo", anchor=anchor, beta=1.0)
    tokens: dict[str, Any] = {"old": mx.array([[-1.0, -9.0]]), "ref": mx.array([[-3.0, -9.0]])}
    computed = advantages([0.0], [0], how, mask=mx.array([[1, 0]]), **tokens)
    assert numbers(computed.penalty) == [-88.0]


@pytest.mark.parametrize("choice", ["signal", "trust", "weight", "anchor"])
@pytest.mark.parametrize(
    ("result", "returned"),
    [
        (mx.zeros((8, 6), dtype=mx.int32), r"mlx\.core\.int32 of shape \(8, 6\)"),
        (mx.zeros((8, 5)), r"mlx\.core\.float32 of shape \(8, 5\)"),
        (1.0, "a Python float"),
    ],
)
def test_what_a_function_returns_must_fit(choice: str, result: object, returned: str) -> None:
    how, batch = recipe("grpo", **{choice: lambda: result}), random_batch(0)
    rewards, groups, mask = [1.0] * 8, batch["group_ids"], batch["mask"]
    legal = r"\(2, 4\) or \(8, 6\)" if choice == "signal" else r"\(8, 6\)"
    message = rf"^{choice} .*lambda.* returned {returned}; .* float32 of shape {legal}"
    with pytest.raises(MathsError, match=message) as refused:
        advantages(rewards, groups, how, mask=mask) if choice == "signal" else loss_of(batch, how)
    assert refused.value.settings == (f"algorithm.{choice}",)


def test_groups_of_other_sizes_are_refused() -> None:
    how = recipe("grpo", signal=lambda rewards_PG: rewards_PG)
    for groups in ([0, 0, 1], [0, 1, 0, 1]):
        with pytest.raises(EngineError, match="groups of one size, one after the other"):
            advantages([1.0] * len(groups), groups, how)


def test_a_recipe_with_functions_is_a_recipe_like_others(tmp_path: Path) -> None:
    how: Recipe = recipe("dr-grpo", signal=f"{tmp_path}/no.py:f")
    assert how == recipe("dr-grpo", signal=f"{tmp_path}/no.py:f")  # nothing is loaded yet
    assert hash(how)
    assert how.compares == "completions"
    with pytest.raises(EngineError, match=r"there is no file .*no\.py"):
        advantages([1.0, 0.0], [0, 0], how)
    with pytest.raises(RecipeError, match=r"one of none, clip.* or file\.py:function"):
        recipe("grpo", trust="clipp")
    with pytest.raises(RecipeError, match="ratio"):
        recipe("grpo", ratio="mine.py:ratio")
    with pytest.raises(RecipeError, match="no effect with beta=0"):
        recipe("dr-grpo", anchor="mine.py:k")


def test_a_function_is_named_in_the_folder_of_the_run_while_it_is_called(tmp_path: Path) -> None:
    file = tmp_path / "running.txt"
    texts = []

    def signal(rewards_PG: mx.array) -> mx.array:
        texts.append(file.read_text(encoding="utf-8"))
        return rewards_PG

    file.write_text("what an earlier process left")
    with named_in(tmp_path):
        assert file.read_text() == ""
        advantages([1.0], [0], recipe("grpo", signal=signal))
    assert ("signal" in texts[0], file.read_text()) == (True, "")
