"""What sampling asks of an environment, and what it gets back.

A rollout with an environment is a dialogue: a turn of the model, the environment's reply, and so
on. While the environment of one row answers, other rows are decoded.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from grpo_engine.tasks.base import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A tool that the model called, with what it gave or the error that it raised."""

    name: str
    arguments: Mapping[str, Any]
    result: str
    failed: bool = False

    def __str__(self) -> str:
        pairs = self.arguments.items()
        written = [str(value) if len(pairs) == 1 else f"{name}={value}" for name, value in pairs]
        return f"⚙ {self.name}({', '.join(written)}) → {self.result}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnLimits:
    """What ends the model's next turn besides an end token; 0 tokens are no limit."""

    tokens: int = 0
    stop: tuple[str, ...] = ()


NO_LIMITS = TurnLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentReply:
    """An environment's reply to an answer; with an `error` the rollout has failed.

    The messages follow the answer, or if it `restarts` they are a whole dialogue, which the next
    answer follows alone.
    """

    messages: tuple[Message, ...] = ()
    restarts: bool = False
    done: bool = False
    reward: float | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    calls: tuple[ToolCall, ...] = ()
    tools: Sequence[Mapping[str, Any]] = ()  # that the next turn may call, if it says so
    limits: TurnLimits = NO_LIMITS  # of the next turn
    name: str = ""
    ms: float = 0.0
    error: str = ""

    @property
    def text(self) -> str:
        """The reply for people."""
        if self.calls:
            return "\n".join(map(str, self.calls))
        return "\n".join(str(message.get("content") or "") for message in self.messages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The tokens of an answer and of the dialogue before it, and whether its limit cut it."""

    context: int = 0
    tokens: int = 0
    is_cut: bool = False


NO_USAGE = Usage()


class Episodes(Protocol):
    """The environments of the rows that are sampled, by the rows' places."""

    def submit(self, index: int, completion: str, usage: Usage) -> None:
        """Send a completion of a row to its environment, which replies later."""

    def replies(self, seconds: float) -> list[tuple[int, EnvironmentReply]]:
        """The replies that have come, after waiting for one at most this long."""

    def last(self, index: int) -> EnvironmentReply:
        """The last reply of a row's environment, which before its first answer is how it began."""


@dataclass(slots=True, kw_only=True)
class Dialogues:
    """The environments of a batch, the tokens of their replies, and what limits a dialogue.

    `tokens` are those of a reply to a row: from the end of the model's turn, its end token not
    included, to the begin of the next one, or of all the dialogue if the reply restarts it.
    `waited` are the seconds in which no row could be decoded.
    """

    episodes: Episodes
    tokens: Callable[[int, EnvironmentReply], tuple[int, ...]]
    end_token: int | None  # the one with which the chat template ends an answer
    max_turns: int
    max_context: int = 0  # tokens of prompt and answer; 0 for the model's context
    # a row's answer, with its ids, in the form that environments read
    read: Callable[[int, Sequence[int], str], str] | None = None
    waited: float = 0.0
