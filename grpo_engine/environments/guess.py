"""Guess a number; the replies are `higher` or `lower`.

"My number is from 12 to 57." - "34" - "higher" - "46" - "46 is right".
"""

import random
from collections.abc import Mapping
from typing import Any

from grpo_engine.environments.protocol import Reply
from grpo_engine.tasks.answers import final_answer, last_number

COST = 0.1  # each guess after the first


class Guess:
    """Reward 1 for the first guess, less for each further one, 0 if the number is not found."""

    def reset(self, row: Mapping[str, Any], seed: int) -> None:
        """Draw a number from the row's range."""
        self.number = random.Random(seed).randint(row["low"], row["high"])
        self.guesses = 0

    def step(self, answer: str) -> Reply:
        guess = last_number(final_answer(answer))
        self.guesses += 1
        info = {"guesses": self.guesses, "found": int(guess == self.number)}
        if guess is None:
            return _reply("Guess one number.", info)
        if guess != self.number:
            return _reply("higher" if guess < self.number else "lower", info)
        reward = max(COST, 1 - COST * (self.guesses - 1))
        return Reply(done=True, reward=reward, info=info)


def _reply(text: str, info: Mapping[str, Any]) -> Reply:
    return Reply([{"role": "user", "content": text}], info=info)
