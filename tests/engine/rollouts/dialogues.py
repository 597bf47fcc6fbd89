"""Made-up environments for tests of sampling, and the oracle: one row at a time, no cache."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from grpo_engine.policy.policy import Policy
from grpo_engine.rollouts.decode import SampleRows, make_rows
from grpo_engine.rollouts.dialogue import (
    NO_LIMITS,
    Dialogues,
    EnvironmentReply,
    TurnLimits,
    Usage,
)
from grpo_engine.rollouts.types import PromptRows, Sampling, Trajectory
from tests.engine.rollouts.oracle import take_one

Script = Mapping[tuple[int, int], EnvironmentReply]  # by row and turn; a missing one ends it


def said(text: str, **more: Any) -> EnvironmentReply:
    return EnvironmentReply(messages=({"role": "user", "content": text},), **more)


@dataclass
class Scripted:
    """Episodes that reply by a script, each after some looks at them."""

    script: Script
    delays: Mapping[tuple[int, int], int] = field(default_factory=dict)
    failures: Mapping[int, EnvironmentReply] = field(default_factory=dict)
    asked: list[list[Any]] = field(default_factory=list)
    turns: dict[int, int] = field(default_factory=dict)
    limited: Mapping[tuple[int, int], TurnLimits] = field(default_factory=dict)
    usages: list[Usage] = field(default_factory=list)
    answers: dict[int, list[str]] = field(default_factory=dict)

    def submit(self, place: int, completion: str, usage: Usage) -> None:
        self.usages.append(usage)
        turn = self.turns.get(place, 0)
        self.turns[place] = turn + 1
        self.answers.setdefault(place, []).append(completion)
        reply = self.script.get((place, turn), EnvironmentReply(done=True))
        reply = replace(reply, limits=self.limited.get((place, turn + 1), NO_LIMITS))
        self.asked.append([self.delays.get((place, turn), 0), place, reply])

    def replies(self, seconds: float) -> list[tuple[int, EnvironmentReply]]:  # noqa: ARG002
        ready = [(place, reply) for delay, place, reply in self.asked if delay <= 0]
        self.asked = [[delay - 1, place, reply] for delay, place, reply in self.asked if delay > 0]
        return ready

    def last(self, place: int) -> EnvironmentReply:
        limits = self.limited.get((place, 0), NO_LIMITS)
        return self.failures.get(place, EnvironmentReply(limits=limits))


def tokens(_: int, reply: EnvironmentReply) -> tuple[int, ...]:
    """A stand-in for the chat template: marks around the bytes of each message."""
    letters = (letter % 256 for m in reply.messages for letter in m["content"].encode())
    return (*([258] if reply.restarts else []), 259, *letters, 260)


def dialogues(
    episodes: Scripted, *, end: int | None = 257, max_turns: int = 4, max_context: int = 0
) -> Dialogues:
    return Dialogues(
        episodes=episodes,
        tokens=tokens,
        end_token=end,
        max_turns=max_turns,
        max_context=max_context,
    )


def one_by_one(
    policy: Policy,
    prompts: Sequence[PromptRows],
    sampling: Sampling,
    dialogue: Dialogues,
    script: Script,
    *,
    seed: int,
    step: int,
) -> list[Trajectory]:
    """The expected rollouts: every token from a forward over all before it."""
    rows = make_rows(
        policy,
        SampleRows(
            prompts=prompts, sampling=sampling, seed=seed, noise_step=step, dialogues=dialogue
        ),
    )
    policy.module.eval()
    limited = getattr(dialogue.episodes, "limited", {})
    for row in rows:
        begun = dialogue.episodes.last(row.number)
        if begun.error:
            row.add_reply(begun)
            row.finish = "environment_error"
        while row.finish is None:
            row.limits = limited.get((row.number, row.turn), NO_LIMITS)
            take_one(policy, row, sampling)
            if row.finish in ("stop", "stop_string"):
                row.end_turn()
                reply = script.get((row.number, row.turn), EnvironmentReply(done=True))
                _reply(row, reply, dialogue)
    return [row.trajectory(has_environment=True) for row in rows]


def _reply(row: Any, reply: EnvironmentReply, dialogue: Dialogues) -> None:
    """What follows an answer, written down once more from the rules of the design."""
    if reply.error:
        row.add_reply(reply)
        row.finish = "environment_error"
    elif reply.done:
        row.add_reply(reply)
        row.finish = "stop"
    elif row.turn == dialogue.max_turns - 1:
        row.add_reply(reply)
        row.finish = "turns"
    else:
        said_by_it = list(tokens(row.number, reply))
        left = row.max_tokens - len(row.ids)
        if reply.restarts:
            left += len(row.context)
        elif dialogue.end_token is not None and row.ids[-1] != dialogue.end_token:
            said_by_it.insert(0, dialogue.end_token)
        if row.length == row.limit:
            row.add_reply(reply)
            row.finish = "length"
        elif len(said_by_it) >= left:
            row.add_reply(reply)
            row.finish = "context"
        else:
            row.add_reply(reply, said_by_it)
