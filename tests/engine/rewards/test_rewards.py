from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_engine.errors import RewardError
from grpo_engine.events import RewardValue
from grpo_engine.rewards import correctness, shape
from grpo_engine.rewards.builtins import BUILT_IN
from grpo_engine.rewards.load import load_reward
from grpo_engine.rewards.outcome import RewardProblem, read_scores
from grpo_engine.rewards.scorer import steps_of
from grpo_engine.rollouts.types import Trajectory
from grpo_engine.tasks.answers import (
    evaluate,
    final_answer,
    last_boxed,
    last_number,
    tagged_answer,
    to_number,
)

GOOD = "<think>7+8=15</think><answer>1,085</answer>"


def one(function: Any, text: str, **columns: Any) -> Any:
    return function(prompts=["p"], completions=[text], **{k: [v] for k, v in columns.items()})[0]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1,085.00", 1085),
        ("$5", 5),
        ("-3/4", -0.75),
        ("50 %", 50),
        (".5", 0.5),
        ("12.", 12),
        ("", None),
        ("1/0", None),
        ("seven", None),
        ("9" * 500, None),
        ("1e5", None),
        ("\N{MINUS SIGN}5", -5),
        ("- 5", -5),
        ("3 / 4", 0.75),
        ("1 085", 1085),
        ("1,2,3", None),
        ("1,200,300", 1200300),
        ("0,5", None),
        ("3 4", None),
    ],
)
def test_numbers_are_read_as_people_write_them(text: str, number: float | None) -> None:
    assert to_number(text) == number


def test_the_marked_answer_is_the_last_one() -> None:
    assert tagged_answer("<answer>1</answer> no, <answer> 2 </answer>") == "2"
    assert tagged_answer("so \\boxed{\\frac{1}{2}}.") == "\\frac{1}{2}"
    assert tagged_answer("2 * 36 = 72\n#### 72") == "72"
    assert tagged_answer("it is 7") is None
    assert final_answer("<think>a 5</think> seven ") == "seven"
    assert last_boxed("\\boxed{open") == []
    assert last_number("from 3 to -1,000.5") == -1000.5


@pytest.mark.parametrize(
    ("text", "answer", "score"),
    [
        (GOOD, "1085", 1.0),
        ("so it is 1085.", "1085", 1.0),
        ("<answer>12</answer> 1085", "1085", 0.0),
        ("<answer></answer> 1085", "1085", 0.0),
        ("nothing", "1085", 0.0),
        ("72", "2*36=72 #### 72", 1.0),
        ("0.5", "1/2", 1.0),
        ("5", "five", None),
        ("-5", "\N{MINUS SIGN}5", 1.0),
        ("<answer>\N{MINUS SIGN}5</answer>", "-5", 1.0),
        ("so \N{MINUS SIGN}5", "5", 0.0),
        ("1,2,3", "1,2,3", 1.0),
        ("<answer>1, 2, 3</answer>", "[1,2,3]", 1.0),
        ("they are 1, 2, 3", "1;2;3", 1.0),
        ("<answer>3, 2, 1</answer>", "1,2,3", 0.0),
        ("3", "1,2,3", 0.0),
    ],
)
def test_numeric_answer_compares_numbers(text: str, answer: str, score: float | None) -> None:
    assert one(correctness.numeric_answer, text, answer=answer) == score


def test_a_minus_sign_is_a_minus_in_every_reward() -> None:
    assert one(correctness.exact_answer, "x = \N{MINUS SIGN}5", answer="x = -5") == 1.0
    (steps,) = correctness.equation_steps(["p"], ["9\N{MINUS SIGN}4=5, 9\N{MINUS SIGN}4=6"])
    assert [score for _, score in steps] == [1.0, 0.0]
    assert evaluate("9 \N{MINUS SIGN} 4") == (Fraction(5), [Fraction(9), Fraction(4)])


def test_numeric_answer_can_ask_for_a_marked_answer_and_gives_its_reason() -> None:
    said: dict[str, Any] = {}
    scores = correctness.numeric_answer(
        ["p"], ["so 5"], answer=["5"], log_extra=said.__setitem__, anywhere=False
    )
    assert scores == [0.0]
    assert said == {"reason": ["found nothing, expected 5"]}


def test_a_prefill_counts_as_part_of_the_answer() -> None:
    prompt = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "<think>"}]
    completion = [{"role": "assistant", "content": "so</think><answer>5</answer>"}]
    assert shape.format_all([prompt], [completion]) == [0.5]
    assert shape.format_all([prompt[:1]], [completion]) == [0.0]


def test_exact_answer_ignores_case_spaces_and_a_full_stop() -> None:
    assert one(correctness.exact_answer, "<answer> The  Moon.</answer>", answer="the moon") == 1
    assert one(correctness.exact_answer, "<answer>the moons</answer>", answer="the moon") == 0
    assert one(correctness.exact_answer, "", answer=None) is None
    assert one(correctness.exact_answer, "", answer="") is None  # else an empty answer is right


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "answer", "score"),
    [
        ("so \\boxed{\\frac{2}{4}}", "0.5", 1.0),
        ("<answer>x^2 + 2x + 1</answer>", "(x+1)^2", 1.0),
        ("<answer>x^2</answer>", "(x+1)^2", 0.0),
    ],
)
def test_math_equal_knows_algebra(text: str, answer: str, score: float) -> None:
    pytest.importorskip("math_verify")
    assert one(correctness.math_equal, text, answer=answer) == score
    assert one(correctness.math_equal, text, solution=answer) == score


def test_contains_looks_for_the_option_or_the_column() -> None:
    assert one(correctness.contains, "is (B)", answer="(B)") == 1
    assert one(correctness.contains, "is (b)", answer="(B)") == 0
    assert correctness.contains(["p"], ["xyz"], text="Y", ignore_case=True) == [1.0]
    with pytest.raises(RewardError, match="give the option `text` or a column `answer`"):
        correctness.contains(["p"], ["x"])


def test_regex_searches_or_matches_all() -> None:
    assert correctness.regex(["p"], ["a\nb"], pattern="a.b") == [1.0]
    assert correctness.regex(["p"], ["a\nbc"], pattern="a.b", full=True) == [0.0]
    with pytest.raises(RewardError, match=r"pattern '\(' is not valid"):
        correctness.regex(["p"], ["x"], pattern="(")


def test_json_valid_reads_text_or_a_fenced_block() -> None:
    texts = ['{"a": 1}', '<think>x</think>```json\n{"b": 2}\n```', "{a: 1}", "[" * 90_000]
    assert correctness.json_valid(["p"] * 4, texts) == [1.0, 1.0, 0.0, 0.0]
    assert correctness.json_valid(["p"] * 2, texts[:2], keys=["a"]) == [1.0, 0.0]


def test_format_parts_gives_a_tenth_for_each_tag_that_is_there_once() -> None:
    texts = [GOOD, "<think>a</think>", "<think><think></think>", ""]
    assert shape.format_parts(["p"] * 4, texts) == [0.4, 0.2, 0.1, 0.0]


def test_format_all_wants_both_parts_and_nothing_else() -> None:
    texts = [GOOD, f" {GOOD}\n", f"{GOOD} so", GOOD.replace("7", "<answer>"), "<think></think>"]
    assert shape.format_all(["p"] * 5, texts) == [0.5, 0.5, 0.0, 0.0, 0.0]


def test_think_format_wants_one_thought_at_the_start() -> None:
    texts = [
        "<think>\na\n</think>\nb",
        "<think>\na\nb",
        " <think></think>",
        "<think><think></think>",
    ]
    assert shape.think_format(["p"] * 4, texts) == [1.0, 0.0, 0.0, 0.0]


def test_soft_overlong_falls_over_the_buffer() -> None:
    # L = 100, C = 20: 80 -> 0, 90 -> (80 - 90)/20 = -.5, 100 -> -1, 130 -> -1
    ids = [[1] * n for n in (80, 90, 100, 130)]
    assert shape.soft_overlong(ids, max_length=100, buffer=20) == [0.0, -0.5, -1.0, -1.0]
    with pytest.raises(RewardError, match=r"buffer must be in 1\.\.max_length \(10\), got 0"):
        shape.soft_overlong(ids, max_length=10, buffer=0)


def test_repetition_is_minus_the_share_of_repeated_n_grams() -> None:
    # 1 2 3 4 has no bigram twice; 5 5 5 5 5 has one distinct of four: -(1 - 1/4)
    assert shape.repetition([[1, 2, 3, 4], [5] * 5, [1]], n=2) == [0.0, -0.75, 0.0]


def test_length_falls_in_a_line() -> None:
    assert shape.length([[], [1] * 5, [1] * 20], longest=10) == [1.0, 0.5, 0.0]
    assert shape.length([[1] * 4], shortest=4, longest=8) == [1.0]


def test_equation_steps_score_each_equation_and_then_the_answer() -> None:
    text = "<think>7+8=15, carry 1, 4+3+1=9</think><answer>85</answer>"
    (steps,) = correctness.equation_steps(["p"], [text], answer=["85"])
    assert steps == [(text.index("=15") + 3, 1.0), (text.index("=9") + 2, 0.0), (len(text), 1.0)]


@pytest.mark.parametrize(
    ("equation", "holds"),
    [
        ("2 + 3*4 = 14", 1.0),
        ("7-3-2=2", 1.0),
        ("12/4=3", 1.0),
        ("1/0=5", 0.0),
        ("-5+3 = -2", 1.0),
        ("3 x 4 = 12", 1.0),
        ("40*7=281", 0.0),
        ("8/4*2=4", 1.0),
    ],
)
def test_equations_are_worked_out_with_products_first(equation: str, holds: float) -> None:
    ((step,),) = correctness.equation_steps(["p"], [equation])
    assert step[1] == holds


def test_outcome_scores_are_a_step_at_the_end_of_the_completion() -> None:
    long, short = (
        Trajectory(
            key="",
            group=0,
            index=0,
            attempt=0,
            prompt_ids=(),
            ids=(7,) * length,
            logprobs=(),
            raw_logprobs=(),
            finish="stop",
            text="a" * length,
            ends=tuple(range(1, length + 1)),
        )
        for length in (9, 4)
    )
    rewards = [
        [
            RewardValue(name="steps", value=by_steps, weight=2.0),
            RewardValue(name="outcome", value=outcome, weight=1.0),
        ]
        for by_steps, outcome in ((0.5, 1.0), (None, 0.0))
    ]
    assert steps_of(long, rewards[0], [[(3, 1.0), (99, 0.0)], None]) == (
        (2, 2.0),
        (8, 0.0),
        (8, 1.0),
    )
    assert steps_of(short, rewards[1], [None, None]) == ((3, 0.0),)


def test_arrays_and_scalars_of_other_libraries_are_scores() -> None:
    import numpy as np

    assert read_scores(np.array([1, 0.5]), 2) == [1.0, 0.5]
    assert read_scores([np.float32(1), True], 2) == [1.0, 1.0]
    assert read_scores((x for x in (1, None)), 2) == [1.0, None]
    for steps in ([(1, 2, 3)], [(-1, 0.5)], [(1.5, 0.5)], [5], ["ab"]):
        (problem,) = read_scores([steps], 1)
        assert isinstance(problem, RewardProblem)
        assert problem.cause == "type"


@given(st.floats() | st.integers(), st.floats(-1e9, 1e9))
def test_a_score_is_kept_if_float32_can_add_it_up_and_named_if_not(
    item: float, weight: float
) -> None:
    value, other = read_scores([item, 1.0], 2, weight)
    assert other == 1.0
    (steps,) = read_scores([[(0, item), (1, 1.0)]], 1, weight)
    if isinstance(value, RewardProblem):
        assert value.cause == "value"
        assert "finite number" in value.message
        assert steps == value
    else:
        assert value == float(item)
        assert np.isfinite(np.float32(max(1, abs(weight)) * value) * np.float32(1e6))
        assert steps == ((0, value), (1, 1.0))


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_every_built_in_reward_loads_and_takes_trls_keywords(name: str) -> None:
    loaded = load_reward(name, {})
    assert loaded.name == name
    assert loaded.has_kwargs
