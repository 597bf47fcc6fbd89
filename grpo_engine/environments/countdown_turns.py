"""Countdown with several tries: the reply to a wrong expression has its value."""

from collections.abc import Mapping
from typing import Any

from grpo_engine.environments.protocol import Reply
from grpo_engine.tasks.answers import final_answer
from grpo_engine.tasks.countdown import judged

FIRST_REWARD, DECREASE = (
    0.5,
    0.1,
)  # reward of a right first try, and its decrease with each further one


class CountdownTurns:
    """Replies with the value of an expression until it is right."""

    def reset(self, row: Mapping[str, Any], seed: int) -> None:  # noqa: ARG002 - the row has all
        """Take the row's numbers and target."""
        self.numbers, self.target, self.tries = row["numbers"], row["target"], 0

    def step(self, answer: str) -> Reply:
        self.tries += 1
        is_right, reason = judged(final_answer(answer), self.numbers, self.target)
        info = {"tries": self.tries, "right": int(is_right)}
        if is_right:
            reward = max(0.0, FIRST_REWARD - DECREASE * (self.tries - 1))
            return Reply(done=True, reward=reward, info=info)
        text = f"Not yet: {reason}. Try again."
        return Reply([{"role": "user", "content": text}], info=info)
