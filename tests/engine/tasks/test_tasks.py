import json
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_engine.config.settings import TaskConfig
from grpo_engine.errors import DataError
from grpo_engine.tasks import gym
from grpo_engine.tasks.answers import evaluate, text_of
from grpo_engine.tasks.base import (
    Example,
    Generated,
    Task,
    draw,
    load_task,
    permuted,
    prompt_hash,
)
from grpo_engine.tasks.countdown import countdown


def numbered(count: int) -> Task:
    examples = tuple(Example(key=str(i), prompt=f"p{i}") for i in range(count))
    return Task(name="t", description="", train=examples, held_out=(), fingerprint="")


def make(name: str, **settings: Any) -> Task:
    return load_task(TaskConfig(name=name, **{"held_out_size": 20, **settings}))


@given(st.integers(1, 300), st.text(max_size=5))
def test_permuted_sends_a_range_one_to_one_onto_itself(size: int, key: str) -> None:
    assert sorted(permuted(i, size, key) for i in range(size)) == list(range(size))


def test_each_pass_over_the_data_has_its_own_order() -> None:
    first, second = ([permuted(i, 50, f"0/{epoch}") for i in range(50)] for epoch in (0, 1))
    assert first != second
    assert first != sorted(first)


@given(st.integers(0, 100), st.integers(1, 30))
def test_drawing_in_parts_is_drawing_at_once(position: int, count: int) -> None:
    task = numbered(7)
    at_once = draw(task, 3, position, count)
    in_parts = [e for i in range(count) for e in draw(task, 3, position + i, 1)]
    assert at_once == in_parts


def test_without_shuffling_problems_come_in_their_order() -> None:
    examples = tuple(Example(key=str(i), prompt=str(i)) for i in range(3))
    task = Task(
        name="t", description="", train=examples, held_out=(), fingerprint="", shuffle=False
    )
    assert [e.key for e in draw(task, 9, 2, 3)] == ["2", "0", "1"]


def test_a_generated_problem_that_is_held_out_is_made_again() -> None:
    def mod(index: int) -> Example:
        return Example(key=str(index), prompt=str(index % 10))

    items = Generated(mod, 100, {prompt_hash("3")})
    assert "3" not in {example.prompt for example in items}
    assert items[13] == items[13]
    assert items[4].key == "4"


def test_a_generator_with_too_few_problems_says_so() -> None:
    items = Generated(lambda i: Example(key=str(i), prompt="same"), 10, {prompt_hash("same")})
    with pytest.raises(DataError, match=r"lower task\.held_out_size"):
        items[0]


OFFLINE = ["countdown", "endings", "reasoning-gym:gsm_symbolic", "reasoning-gym:acre"]


@pytest.mark.parametrize("name", OFFLINE)
def test_train_and_held_out_share_no_prompt(name: str) -> None:
    task = make(name, held_out_size=30)
    held = {prompt_hash(example.prompt) for example in task.held_out}
    assert len(held) == len(task.held_out) == 30
    assert not held & {prompt_hash(example.prompt) for example in task.train[:200]}


@pytest.mark.parametrize("name", OFFLINE)
def test_problems_depend_on_the_settings_alone(name: str) -> None:
    one, two, other = make(name), make(name), make(name, options={"seed": 5})
    assert one.train[:5] == two.train[:5]
    assert one.held_out == two.held_out
    assert one.fingerprint == two.fingerprint != other.fingerprint
    assert one.train[0] != other.train[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", OFFLINE)
def test_columns_are_json_and_rewards_are_named(name: str) -> None:
    task = make(name, held_out_size=2)
    columns = dict(task.train[0].columns)
    assert json.loads(json.dumps(columns)) == columns
    assert task.accuracy == task.default_rewards[0].name
    assert task.train[0].target


def test_settings_replace_the_tasks_own_system_prompt_and_prefill() -> None:
    assert make("countdown").system_prompt
    assert make("countdown", system_prompt="").system_prompt == ""
    assert make("endings").prefill == "The ending that fits is"
    assert make("endings", prefill="X").prefill == "X"


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("contdown", {}, "did you mean countdown?"),
        ("countdown", {"options": {"nubers": 3}}, "did you mean numbers?"),
        ("countdown", {"options": {"numbers": "x"}}, "such as 3; got 'x'"),
        ("countdown", {"options": {"numbers": True}}, "such as 3; got True"),
        ("countdown", {"options": {"numbers": 1}}, "numbers must be a whole number ≥ 2 and ≤ 8"),
        ("countdown", {"options": {"operators": "+%"}}, "must be some of '+-*/'"),
        ("reasoning-gym:gsm_symbolik", {}, "did you mean gsm_symbolic"),
        ("reasoning-gym:countdown", {"options": {"x": 1}}, "it takes min_numbers, max_numbers"),
        ("reasoning-gym:countdown", {"options": {"min_numbers": 0}}, "min_numbers must be greater"),
    ],
)
def test_a_wrong_name_or_option_is_an_error_with_a_remedy(
    name: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError) as caught:
        make(name, **settings)
    assert message in str(caught.value)


@pytest.mark.parametrize("index", range(20))
def test_every_countdown_problem_has_a_solution(index: int) -> None:
    example = make("countdown", options={"numbers": 4}, held_out_size=1).train[index]
    value, used = evaluate(str(example.columns["answer"]))
    assert value == example.columns["target"]
    assert sorted(used) == sorted(example.columns["numbers"])


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("<think>7*3=21</think><answer>25 + 3 * 7</answer>", 1.0),
        ("<answer>25 + 7 × 3 = 46</answer>", 1.0),
        ("<answer>(25 - 2) * 2</answer>", 0.0),  # 46, but with other numbers
        ("<answer>25 + 3 + 7</answer>", 0.0),
        ("<answer>25 / 0</answer>", 0.0),
        ("<answer>__import__('os')</answer>", 0.0),
        ("<answer>" + "(" * 10_000 + "</answer>", 0.0),
        ("", 0.0),
    ],
)
def test_countdown_scores_an_expression_exactly(text: str, score: float) -> None:
    assert countdown(["p"], [text], numbers=[[3, 7, 25]], target=[46]) == [score]


def test_an_expression_is_worked_out_exactly() -> None:
    # 1/3 * 3 is exactly 1, not .999…
    assert evaluate("1 / 3 * 3") == (Fraction(1), list(map(Fraction, (1, 3, 3))))
    assert evaluate("2 - -3 * (4 - 1)")[0] == 11
    for wrong in ("1 +", "1 2", "(1", "1 ** 2", "2 // 1", "1 / 0", "a", "1, 2", "9" * 501):
        with pytest.raises(ValueError, match=r"syntax|closed|by|not arithmetic|Fraction"):
            evaluate(wrong)


def test_every_generator_scores_its_own_answer_with_its_own_scorer() -> None:
    task = make("reasoning-gym:basic_arithmetic", held_out_size=3)
    examples = [*task.train[:3], *task.held_out]
    columns = {k: [e.columns[k] for e in examples] for k in examples[0].columns}
    right = [f"<think>so</think><answer>{e.target}</answer>" for e in examples]
    assert gym.gym_score(["p"] * 6, right, **columns) == [1.0] * 6
    assert max(gym.gym_score(["p"] * 6, ["no idea"] * 6, **columns)) < 1


def test_a_scorer_that_would_run_text_does_not_get_calls() -> None:
    task = make("reasoning-gym:countdown", held_out_size=1)
    example = task.train[0]
    columns: dict[str, Any] = {k: [example.columns[k]] for k in example.columns}
    logged: dict[str, Any] = {}
    score = gym.gym_score(
        ["p"], ["<answer>exec('x')</answer>"], log_extra=logged.__setitem__, **columns
    )
    assert score == [0.0]
    assert "would run it" in logged["reason"][0]
    assert gym.refused(gym._dataset("countdown", '{"seed": 0}', 9), "().__class__")
    assert not gym.refused(gym._dataset("countdown", '{"seed": 0}', 9), "(1 + 2) * 3")


def test_an_ending_is_one_of_four_and_the_answer_names_it() -> None:
    for example in make("endings").train[:50]:
        text = text_of([dict(m) for m in example.prompt if not isinstance(m, str)])
        assert "N " not in text
        assert "{" not in text
        letter = str(example.columns["answer"])
        assert text.count(letter) == 1
        assert len(set(example.columns["endings"])) == 4
