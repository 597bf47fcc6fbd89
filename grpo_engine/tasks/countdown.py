"""Countdown: use each given number once, with + - * /, to reach the target.

"Using each of 3, 7, 25 exactly once, write an expression that equals 46." A right completion ends
in `<answer>(25 - 3) * 7 … </answer>`, here `<answer>25 + 3 * 7</answer>`.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, Final

from grpo_engine.config.declaration import declared
from grpo_engine.config.settings import TaskConfig
from grpo_engine.errors import DataError
from grpo_engine.tasks.answers import evaluate, final_answer
from grpo_engine.tasks.base import (
    Example,
    RewardSpec,
    Task,
    digest_of,
    generated_task,
    user_message,
)
from grpo_engine.tasks.by_text import Score, by_text
from grpo_engine.tasks.options import SEED, read_options, require_at_least

SYSTEM: Final = (
    "Think inside <think> and </think>, then give one arithmetic expression, without an equals "
    "sign, inside <answer> and </answer>."
)
OPTIONS: Final = {
    "numbers": declared(3, "Numbers of a problem.", ge=2, le=8),
    "smallest": declared(1, "Smallest number.", ge=1),
    "largest": declared(25, "Largest number."),
    "largest_target": declared(100, "Largest number to reach.", ge=None),
    "operators": declared("+-*/", "Operators that may be used."),
    "seed": SEED,
}
REWARDS: Final = (RewardSpec(name="countdown"), RewardSpec(name="format_all", weight=0.2))


def build(config: TaskConfig) -> Task:
    """Build the task; `options` set how many numbers, how large, and which operators."""
    options = read_options(config, OPTIONS)
    require_at_least(options, "largest", options["smallest"])
    if not options["operators"] or set(options["operators"]) - set("+-*/"):
        raise DataError(
            f"task.options.operators must be some of '+-*/', got {options['operators']!r}",
            "task.options",
        )
    return generated_task(
        config,
        "countdown",
        lambda index: example(index, options),
        ["countdown 1", str(sorted(options.items()))],
        system_prompt=SYSTEM,
        description="Reach a target number from given numbers.",
        default_rewards=REWARDS,
        accuracy="countdown",
    )


def build_with_turns(config: TaskConfig) -> Task:
    """The same problems with several tries, each told what it gives."""
    task = build(config)
    return replace(
        task,
        name="countdown-turns",
        description="Reach a target number from given numbers, with several tries.",
        fingerprint=digest_of(["countdown-turns 1", task.fingerprint]),
        environment="grpo_engine.environments.countdown_turns:CountdownTurns",
    )


def example(index: int, options: dict[str, Any]) -> Example:
    """Problem `index`, made from a random expression so that it has a solution."""
    rng = random.Random(f"countdown/{options['seed']}/{index}")
    for _ in range(1000):
        numbers = [
            rng.randint(options["smallest"], options["largest"]) for _ in range(options["numbers"])
        ]
        expression, value = combined(rng, numbers, options["operators"])
        if value.denominator == 1 and 0 < value <= options["largest_target"]:
            break
    else:
        raise DataError(
            "task.options of countdown leave no target: raise largest_target or lower smallest",
            "task.options",
        )
    rng.shuffle(numbers)
    listed = ", ".join(map(str, numbers[:-1])) + f" and {numbers[-1]}"
    text = f"Using each of {listed} exactly once, write an expression that equals {value}."
    return Example(
        key=f"countdown-{index}",
        prompt=user_message(text),
        target=expression,
        columns={"numbers": numbers, "target": int(value), "answer": expression},
    )


def combined(rng: random.Random, numbers: Sequence[int], operators: str) -> tuple[str, Fraction]:
    """Combine the numbers pairwise at random; return expression and value, 0 if undefined."""
    parts = [(str(number), Fraction(number)) for number in numbers]
    while len(parts) > 1:
        (a, x), (b, y) = (parts.pop(rng.randrange(len(parts))) for _ in range(2))
        operator = rng.choice(operators)
        if operator == "/" and y == 0:
            return "", Fraction(0)
        value = {"+": x + y, "-": x - y, "*": x * y}.get(operator)
        parts.append((f"({a} {operator} {b})", x / y if value is None else value))
    return parts[0][0].removeprefix("(").removesuffix(")"), parts[0][1]


@by_text
def countdown(text: str, numbers: Sequence[int], target: int) -> Score:
    """Give 1 where the answer uses each number once and equals the target, else 0."""
    is_right, reason = judged(final_answer(text), numbers, target)
    return float(is_right), reason


def judged(expression: str, numbers: Sequence[int], target: int) -> tuple[bool, str]:
    """Whether an expression uses each number once and equals the target, and the reason."""
    try:
        value, used = evaluate(expression.partition("=")[0].strip())
    except ValueError as error:
        return False, str(error)
    if sorted(used) != sorted(numbers):
        listed = ", ".join(map(str, sorted(used)))
        return False, f"used [{listed}], not {sorted(numbers)}"[:120]
    return value == target, f"gives {value}, target {target}"[:120]
