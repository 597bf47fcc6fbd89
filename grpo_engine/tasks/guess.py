"""Guess a number from hints: a dialogue with the environment `guess`.

The problem is a range; the environment thinks of a number in it, the same for all answers to it.
"""

import random
from typing import Final

from grpo_engine.config.declaration import declared
from grpo_engine.config.settings import TaskConfig
from grpo_engine.tasks.base import Example, Task, generated_task, user_message
from grpo_engine.tasks.options import SEED, read_options, require_at_least

SYSTEM: Final = "Guess the number. Answer with one number and nothing else."
OPTIONS: Final = {
    "smallest": declared(1, "Smallest number.", ge=None),
    "largest": declared(100, "Largest number.", ge=None),
    "width": declared(50, "Widest range that is told at the start.", ge=2),
    "seed": SEED,
}


def build(config: TaskConfig) -> Task:
    """Build the task; `options` set the bounds and the width of the ranges."""
    options = read_options(config, OPTIONS)
    require_at_least(options, "largest", options["smallest"] + options["width"])

    def problem(index: int) -> Example:
        rng = random.Random(f"guess/{options['seed']}/{index}")
        width = rng.randint(2, options["width"])
        low = rng.randint(options["smallest"], options["largest"] - width)
        return Example(
            key=f"guess-{index}",
            prompt=user_message(f"My number is from {low} to {low + width}."),
            columns={"low": low, "high": low + width},
        )

    return generated_task(
        config,
        "guess",
        problem,
        ["guess 1", str(sorted(options.items()))],
        system_prompt=SYSTEM,
        description="Find a number by guesses that are told to be too low or too high.",
        environment="grpo_engine.environments.guess:Guess",
    )
