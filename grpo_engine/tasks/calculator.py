"""Products of large numbers, with a calculator as a tool: "What is 4817 * 263?"."""

import random
from typing import Final

from grpo_engine.config.declaration import declared
from grpo_engine.config.settings import TaskConfig
from grpo_engine.tasks.base import Example, RewardSpec, Task, generated_task, user_message
from grpo_engine.tasks.options import SEED, read_options

SYSTEM: Final = (
    "Always use the calculator. For example, to work out 12 + 34, write "
    '<tool_call>{"name": "calculator", "arguments": {"expression": "12 + 34"}}</tool_call> and '
    "nothing else. When you have its result, answer with that number."
)
OPTIONS: Final = {"digits": declared(4, "Most digits of a number.", ge=2), "seed": SEED}


def build(config: TaskConfig) -> Task:
    """Build the task; `options` set how many digits the numbers have at most."""
    options = read_options(config, OPTIONS)

    def problem(index: int) -> Example:
        rng = random.Random(f"calculator/{options['seed']}/{index}")
        a, b = (rng.randint(11, 10 ** options["digits"] - 1) for _ in range(2))
        sign = rng.choice("+-*")
        value = {"+": a + b, "-": a - b, "*": a * b}[sign]
        return Example(
            key=f"calculator-{index}",
            prompt=user_message(f"What is {a} {sign} {b}?"),
            target=str(value),
            columns={"answer": str(value)},
        )

    return generated_task(
        config,
        "calculator",
        problem,
        ["calculator 1", str(sorted(options.items()))],
        system_prompt=SYSTEM,
        description="Arithmetic with large numbers and a calculator as a tool.",
        default_rewards=(RewardSpec(name="numeric_answer"),),
        accuracy="numeric_answer",
        tools=("grpo_engine.environments.calculator:calculator",),
    )
