"""Requests of sampling to an environment, and its replies.

A rollout with an environment is a dialogue: a turn of the model, the environment's reply, and so
on. While one row waits for its environment, other rows are decoded.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from grpo_engine.frozen import frozen
from grpo_engine.tasks.base import Message


@frozen
class ToolCall:
    """A tool that the model called, with its result or the error that it raised."""

    name: str
    arguments: Mapping[str, Any]
    result: str
    failed: bool = False

    def __str__(self) -> str:
        pairs = self.arguments.items()
        arguments = [str(value) if len(pairs) == 1 else f"{name}={value}" for name, value in pairs]
        return f"⚙ {self.name}({', '.join(arguments)}) → {self.result}"


@frozen
class TurnLimits:
    """Limits of the model's next turn besides an end token; 0 tokens are no limit."""

    tokens: int = 0
    stop: tuple[str, ...] = ()


NO_LIMITS = TurnLimits()


@frozen
class EnvironmentReply:
    """An environment's reply to a completion; with an `error` the rollout has failed.

    The messages follow the completion; if the reply `restarts` they are a new dialogue, without
    the turns before.
    """

    messages: tuple[Message, ...] = ()
    restarts: bool = False
    done: bool = False
    reward: float | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    calls: tuple[ToolCall, ...] = ()
    tools: Sequence[Mapping[str, Any]] = ()  # tools of the next turn; () leaves them as they are
    limits: TurnLimits = NO_LIMITS  # limits of the next turn
    name: str = ""
    ms: float = 0.0
    error: str = ""

    @property
    def text(self) -> str:
        """The reply for people."""
        if self.calls:
            return "\n".join(map(str, self.calls))
        return "\n".join(str(message.get("content") or "") for message in self.messages)


@frozen
class Usage:
    """Tokens of a completion and of the dialogue before it, and whether its limit cut it."""

    context: int = 0
    tokens: int = 0
    is_cut: bool = False


NO_USAGE = Usage()


class Episodes(Protocol):
    """The environments of the rows that are sampled, by the rows' numbers."""

    def submit(self, index: int, completion: str, usage: Usage) -> None:
        """Send a completion of a row to its environment, which replies later."""

    def replies(self, seconds: float) -> list[tuple[int, EnvironmentReply]]:
        """The replies that have come, after waiting for one at most this long."""

    def last(self, index: int) -> EnvironmentReply:
        """The last reply of a row's environment; before its first turn, the way that it began."""


@dataclass(slots=True, kw_only=True)
class Dialogues:
    """The environments of a batch, the tokens of their replies, and what limits a dialogue.

    `tokens` are those of a reply to a row: from the end of the model's turn, its end token not
    included, to the beginning of the next one, or of the new dialogue if the reply restarts.
    `waited` are the seconds in which no row could be decoded.
    """

    episodes: Episodes
    tokens: Callable[[int, EnvironmentReply], tuple[int, ...]]
    end_token: int | None  # the chat template's, after a completion
    max_turns: int
    max_context: int = 0  # tokens of prompt and completion; 0 for the model's context
    # Gives environments a row's completion in the form that they read, from number, ids and text.
    read: Callable[[int, Sequence[int], str], str] | None = None
    waited: float = 0.0
