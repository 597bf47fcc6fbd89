"""Environments of rows that a worker samples: it asks the engine, which has their processes.

The engine sends only what a worker waits for, so that neither can wait for the other to read.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from grpo_engine.rollouts.dialogue import Dialogues, EnvironmentReply, ToolCall
from grpo_engine.tasks.base import Message

Engine = Callable[[Mapping[str, Any]], dict[str, Any]]  # sends a request, waits for its answer


class RemoteEpisodes:
    """A worker's view of the environments of its rows."""

    def __init__(self, engine: Engine, failures: Mapping[str, Any]) -> None:
        self._engine, self._failures = engine, failures

    def ask(self, place: int, answer: str) -> None:
        self._engine({"episode": "ask", "place": place, "answer": answer})

    def replies(self, seconds: float) -> list[tuple[int, EnvironmentReply]]:
        found = self._engine({"episode": "replies", "seconds": seconds})["replies"]
        return [(place, _reply(data)) for place, data in found]

    def failure(self, place: int) -> EnvironmentReply | None:
        data = self._failures.get(str(place))
        return None if data is None else _reply(data)

    def tokens(self, messages: Sequence[Message]) -> tuple[int, ...]:
        found = self._engine({"episode": "tokens", "messages": list(messages)})
        if "failed" in found:
            raise ValueError(found["failed"])
        return tuple(found["tokens"])

    def read(self, place: int, before: Sequence[int], ids: Sequence[int], answer: str) -> str:
        asked = {"place": place, "before": list(before), "ids": list(ids), "answer": answer}
        return str(self._engine({"episode": "read", **asked})["answer"])


def remote_dialogues(engine: Engine, asked: Mapping[str, Any]) -> Dialogues:
    """The dialogues of rows that a worker was asked to sample."""
    episodes = RemoteEpisodes(engine, asked["failures"])
    return Dialogues(
        episodes=episodes, tokens=episodes.tokens, end_token=asked["end_token"],
        max_turns=asked["max_turns"], max_context=asked["max_context"],
        read=episodes.read if asked["reads"] else None,
    )  # fmt: skip


class Served:
    """The engine's end: the dialogues of all rows, of which each worker has consecutive ones."""

    def __init__(self, dialogues: Dialogues, rows: Sequence[int]) -> None:
        self._dialogues = dialogues
        self._first = [sum(rows[:worker]) for worker in range(len(rows))]
        self._rows = rows
        self._come: list[list[Any]] = [[] for _ in rows]  # replies by worker
        self._until: dict[int, float] = {}  # workers that wait for replies, and how long

    @property
    def is_awaited(self) -> bool:
        """Whether a worker waits for replies."""
        return bool(self._until)

    def settings(self, worker: int) -> dict[str, Any]:
        """What a worker must know before it samples its rows."""
        one, first = self._dialogues, self._first[worker]
        lost = {at: one.episodes.failure(first + at) for at in range(self._rows[worker])}
        return {
            "failures": {str(at): asdict(reply) for at, reply in lost.items() if reply},
            "end_token": one.end_token, "max_turns": one.max_turns,
            "max_context": one.max_context, "reads": one.read is not None,
        }  # fmt: skip

    def answer(self, worker: int, asked: Mapping[str, Any]) -> dict[str, Any] | None:
        """The answer to a worker's request; None if it must wait for replies."""
        place = self._first[worker] + asked.get("place", 0)
        match asked["episode"]:
            case "ask":
                self._dialogues.episodes.ask(place, asked["answer"])
            case "tokens":
                try:
                    return {"tokens": list(self._dialogues.tokens(asked["messages"]))}
                except Exception as error:  # a template may raise anything
                    return {"failed": str(error)}
            case "read":
                assert self._dialogues.read is not None
                read = self._dialogues.read(place, asked["before"], asked["ids"], asked["answer"])
                return {"answer": read}
            case _:
                self._until[worker] = time.monotonic() + asked["seconds"]
                return None
        return {}

    def waited(self, seconds: float) -> None:
        """Note how long a worker could not decode any row; the workers wait at the same time."""
        self._dialogues.waited = max(self._dialogues.waited, seconds)

    def replies(self) -> list[tuple[int, dict[str, Any]]]:
        """The answers to workers whose replies have come, or that have waited long enough."""
        for place, reply in self._dialogues.episodes.replies(0):
            worker = max(at for at, first in enumerate(self._first) if first <= place)
            self._come[worker].append((place - self._first[worker], asdict(reply)))
        now = time.monotonic()
        ready = [at for at, until in self._until.items() if self._come[at] or until <= now]
        found = []
        for worker in ready:
            del self._until[worker]
            found.append((worker, {"replies": self._come[worker]}))
            self._come[worker] = []
        return found


def _reply(data: Mapping[str, Any]) -> EnvironmentReply:
    return EnvironmentReply(
        **{**data, "messages": tuple(data["messages"]),
           "calls": tuple(ToolCall(**call) for call in data["calls"])}
    )  # fmt: skip
