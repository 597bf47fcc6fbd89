"""The starter's task: its problems, its sets and its rewards."""

import re

import pytest

from grpo_engine.config.settings import TaskConfig
from grpo_engine.errors import DataError
from grpo_engine.tasks import arithmetic
from grpo_engine.tasks.arithmetic import SPLITS, SYMBOLS, Problem
from grpo_engine.tasks.base import load_task


def every_problem(split: str) -> set[Problem]:
    return {p for kind in SYMBOLS for p in arithmetic.problems(kind, split)}


def value_of(text: str) -> int:
    """The value of a product of two numbers, or of a chain of sums and differences."""
    if "*" in text:
        a, b = text.split("*")
        return int(a) * int(b)
    return sum(int(part) for part in re.findall(r"[+-]?\d+", text))


def test_the_three_sets_are_disjoint_and_hold_every_problem() -> None:
    sets = [every_problem(split) for split in SPLITS]

    assert sorted(bucket for part in SPLITS.values() for bucket in part) == list(range(100))
    assert sum(map(len, sets)) == len(set.union(*sets))
    assert len(sets[2]) >= 1000


def test_swapped_operands_stay_in_the_same_set() -> None:
    for split in SPLITS:
        found = every_problem(split)
        for problem in found:
            swapped = Problem(problem.operation, problem.b, problem.a)
            assert problem.operation == "subtract" or swapped in found


def test_a_problem_never_changes_its_set() -> None:
    # fixed for good: the embedded model was trained on this split
    expected = {"47 + 38": 52, "63 - 27": 91, "23 * 7": 34}
    kinds = {symbol: kind for kind, symbol in SYMBOLS.items()}
    buckets = {}
    for text in expected:
        a, symbol, b = text.split()
        buckets[text] = Problem(kinds[symbol], int(a), int(b)).bucket

    assert buckets == expected


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (Problem("add", 47, 38), "7+8=15, carry 1, 4+3+1=8"),
        (Problem("subtract", 63, 27), "13-7=6, borrow 1, 6-2-1=3"),
        (Problem("multiply", 7, 23), "20*7=140, 3*7=21, 140+21=161"),
    ],
)
def test_the_working_is_what_a_careful_pupil_writes(problem: Problem, expected: str) -> None:
    assert arithmetic.working(problem) == expected


def test_every_equation_of_every_working_holds_and_leads_to_the_answer() -> None:
    for problem in every_problem("held_out"):
        work = arithmetic.working(problem)
        steps = [re.split("=", step) for step in re.findall(r"[\d+*-]+=\d+", work)]
        values = [int(right) for _, right in steps]

        assert [value_of(left) for left, _ in steps] == values
        if problem.operation == "multiply":
            assert values[-1] == problem.answer
        else:
            assert values[1] * 10 + values[0] % 10 == problem.answer


def test_every_sum_carries_and_every_difference_borrows() -> None:
    for problem in every_problem("train"):
        ones = problem.a % 10, problem.b % 10
        if problem.operation == "add":
            assert sum(ones) > 9
        if problem.operation == "subtract":
            assert ones[0] < ones[1]
            assert problem.answer > 0


def test_the_task_gives_different_problems_with_kinds_in_turn() -> None:
    task = load_task(TaskConfig(held_out_size=1000))
    kinds = [example.columns["kind"] for example in task.held_out[:5]]

    assert kinds == ["add", "subtract", "add", "subtract", "multiply"]
    assert len(task.train) >= 1000
    assert len(task.held_out) == 1000
    prompts = [example.prompt for example in (*task.train, *task.held_out)]
    assert len({str(prompt) for prompt in prompts}) == len(prompts)


def test_the_task_is_the_same_every_time_and_its_fingerprint_tells_others_apart() -> None:
    task = load_task(TaskConfig())

    assert load_task(TaskConfig()) == task
    assert load_task(TaskConfig(options={"kinds": ["add"]})).fingerprint != task.fingerprint


def test_one_kind_can_be_asked_for() -> None:
    task = load_task(TaskConfig(options={"kinds": ["multiply"]}, train_size=10))

    assert len(task.train) == 10
    assert {example.columns["kind"] for example in task.train} == {"multiply"}


@pytest.mark.parametrize("kinds", [[], ["divide"], [3]])
def test_an_unknown_kind_is_refused_with_the_known_ones(kinds: list[object]) -> None:
    with pytest.raises(DataError, match="add, subtract, multiply"):
        load_task(TaskConfig.model_validate({"options": {"kinds": kinds}}))
