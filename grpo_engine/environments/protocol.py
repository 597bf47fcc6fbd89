"""The protocol of a user's environment."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Message = Mapping[str, Any]  # keys `role` and `content`


@dataclass(frozen=True, slots=True)
class Reply:
    """An environment's reply to an answer: messages for the model, or the end of the episode.

    `reward` is that of this turn. Numbers in `info` become metrics `env/<name>`.
    """

    messages: Sequence[Message] = ()
    done: bool = False
    reward: float | None = None
    info: Mapping[str, Any] = field(default_factory=dict)


class Environment(Protocol):
    """A game or a dialogue. One instance serves one rollout at a time and is reset often."""

    def reset(self, row: Mapping[str, Any], seed: int) -> Sequence[Message] | None:
        """Begin an episode for a row of the data; return further messages of the prompt.

        All answers to a prompt get the same seed and must face the same problem. A parameter
        `index` gets the answer's number, for chance that may differ between them.
        """

    def step(self, answer: str) -> Reply:
        """Reply to the model's answer."""
