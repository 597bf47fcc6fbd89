"""Sums with a carry, differences with a borrow, and small products: the starter's task.

A careful completion to "What is 47 + 38?" is
`<think>7+8=15, carry 1, 4+3+1=8</think><answer>85</answer>`.

A hash of the operands assigns each problem permanently to one of three disjoint sets: `making` was
used to train the built-in starter, `train` is for GRPO, `held_out` for evaluation. `a + b` and
`b + a` are in the same set, as are products, so that neither leaks the other's answer.
"""

import hashlib
import random
from dataclasses import dataclass
from functools import cache
from itertools import cycle
from typing import Final, Literal, get_args

from grpo_engine.config.declaration import declared
from grpo_engine.config.settings import TaskConfig
from grpo_engine.errors import DataError
from grpo_engine.tasks.base import (
    Example,
    RewardSpec,
    Task,
    digest_of_examples,
    prompt_settings,
    user_message,
)
from grpo_engine.tasks.options import read_options

Kind = Literal["add", "subtract", "multiply"]
SYMBOLS: Final = {"add": "+", "subtract": "-", "multiply": "*"}
# Five problems in turn.
TURNS: Final = ("add", "subtract", "add", "subtract", "multiply")
WORDINGS: Final = ("What is {}?", "Work out {}.", "{} = ?")
# The sets as ranges of a hundred hash buckets.
SPLITS: Final = {"making": range(45), "train": range(45, 75), "held_out": range(75, 100)}
REWARDS: Final = (RewardSpec(name="numeric_answer"), RewardSpec(name="format_all"))
OPTIONS: Final = {
    "kinds": declared(get_args(Kind), "Kinds of problems.", annotation=tuple[Kind, ...])
}


@dataclass(frozen=True, slots=True)
class Problem:
    operation: str
    a: int
    b: int

    @property
    def text(self) -> str:
        """The problem as people write it: `47 + 38`."""
        return f"{self.a} {SYMBOLS[self.operation]} {self.b}"

    @property
    def answer(self) -> int:
        if self.operation == "add":
            return self.a + self.b
        return self.a - self.b if self.operation == "subtract" else self.a * self.b

    @property
    def bucket(self) -> int:
        """A hash below 100 of the operands, independent of their order."""
        low, high = sorted((self.a, self.b))
        return _digest(f"{self.operation} {low} {high}") % 100


def question(problem: Problem, wording: int | None = None) -> str:
    """The user's message, in the problem's own wording or the one given."""
    chosen = _digest(problem.text) % len(WORDINGS) if wording is None else wording
    return WORDINGS[chosen].format(problem.text)


def working(problem: Problem) -> str:
    """The digit-by-digit steps to the answer."""
    a, b = problem.a, problem.b
    if problem.operation == "multiply":
        number, digit = max(a, b), min(a, b)
        ones = number % 10
        tens = number - ones
        return (
            f"{tens}*{digit}={tens * digit}, {ones}*{digit}={ones * digit}, "
            f"{tens * digit}+{ones * digit}={number * digit}"
        )
    (x, i), (y, j) = divmod(a, 10), divmod(b, 10)
    if problem.operation == "add":
        return f"{i}+{j}={i + j}, carry 1, {x}+{y}+1={x + y + 1}"
    return f"{i + 10}-{j}={i + 10 - j}, borrow 1, {x}-{y}-1={x - y - 1}"


@cache
def problems(operation: str, split: str) -> tuple[Problem, ...]:
    """All problems of one kind in one set, in order.

    Sums and differences have two-digit operands and need a carry or borrow; products have one
    two-digit operand that is not a multiple of ten, and one from 2 to 9, in either order.
    """
    numbers = range(10, 100)
    if operation == "multiply":
        pairs = [(a, b) for a in numbers if a % 10 for b in range(2, 10)]
        pairs += [(b, a) for a, b in pairs]
    elif operation == "add":
        pairs = [(a, b) for a in numbers for b in numbers if a % 10 + b % 10 > 9]
    else:
        pairs = [(a, b) for a in numbers for b in numbers if a > b and a % 10 < b % 10]
    every = (Problem(operation, a, b) for a, b in pairs)
    return tuple(problem for problem in every if problem.bucket in SPLITS[split])


def mixed(operations: tuple[str, ...], split: str) -> list[Problem]:
    """Distinct problems of a set in a fixed mixed order: kinds alternate until one runs out."""
    left = {operation: list(problems(operation, split)) for operation in operations}
    for operation, remaining in left.items():
        random.Random(f"arithmetic/{operation}/{split}").shuffle(remaining)
    chosen: list[Problem] = []
    for operation in cycle([turn for turn in TURNS if turn in operations]):
        if not left[operation]:
            return chosen
        chosen.append(left[operation].pop())
    return chosen


def example(problem: Problem) -> Example:
    """The problem as a chat prompt, with its answer and kind as columns."""
    return Example(
        key=f"arithmetic {problem.text}",
        prompt=user_message(question(problem)),
        target=str(problem.answer),
        completion=f"<think>{working(problem)}</think><answer>{problem.answer}</answer>",
        columns={"answer": str(problem.answer), "kind": problem.operation},
    )


def build(config: TaskConfig) -> Task:
    """Build the task; the option `kinds` selects add, subtract and multiply."""
    chosen = read_options(config, OPTIONS)["kinds"]
    if not chosen:
        raise DataError(
            f"task.options.kinds is empty; give some of {', '.join(SYMBOLS)}", "task.options"
        )
    operations = tuple(operation for operation in SYMBOLS if operation in chosen)
    train, held_out = (
        [example(problem) for problem in mixed(operations, split)]
        for split in ("train", "held_out")
    )
    held_out = held_out[: config.held_out_size]
    return Task(
        name="arithmetic",
        description="Sums with a carry, differences with a borrow, and small products.",
        train=train[: config.train_size or None],
        held_out=held_out,
        fingerprint=digest_of_examples(train + held_out),
        default_rewards=REWARDS,
        accuracy="numeric_answer",
        **prompt_settings(config),
    )


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
