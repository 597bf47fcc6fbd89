"""Scripted dialogues: guessing games, one of which loses its environment, and a calculator.

A token is three characters of the model's turn; its end token has no text. A reply has two tokens,
of which only the last one has text, and numbers that nothing should look at.
"""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from grpo_engine import events as ev
from tests.app.script import CONFIG, started
from tests.app.stored import numbers

BROKEN = "step: took longer than rewards.time_limit 2 s (at /home/me/broken.py:14)"


@dataclass(frozen=True, slots=True)
class Turn:
    """What the model says, and the environment's reply."""

    said: str
    reply: str = ""
    reward: float | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    name: str = "Guess"


def guesses(*pairs: tuple[str, str]) -> list[Turn]:
    """A game of guessing; an empty reply is that of the right guess."""
    return [
        Turn(said, reply, None if reply else 1 - 0.1 * place, {"guesses": place + 1})
        for place, (said, reply) in enumerate(pairs)
    ]


CALLED = '<tool_call>{"name": "calculator", "arguments": {"expression": "17*23"}}</tool_call>'
GAMES: tuple[tuple[list[Turn], ev.Finish], ...] = (
    (guesses(("50", "higher"), ("75", "lower"), ("62", "lower"), ("56", "")), "stop"),
    (guesses(("50", "higher"), ("51", "higher"), ("52", "higher"), ("53", "higher")), "turns"),
    ([Turn("50", "higher", info={"guesses": 1}), Turn("75", error=BROKEN)], "environment_error"),
    (guesses(("I think that it is 50, which halves the range", "higher"), ("56", "")), "stop"),
)
SUMS: tuple[tuple[list[Turn], ev.Finish], ...] = (
    ([Turn(CALLED, "⚙ calculator(17*23) → 391", name="calculator"), Turn("391")], "stop"),
    ([Turn("17 times 23 is 401")], "stop"),
    (
        [
            Turn(
                CALLED,
                "⚙ calculator(17*23) → 391\n⚙ calculator(1/0) → {'error': 'divided by 0'}",
                name="calculator",
            ),
            Turn("It is 390"),
        ],
        "length",
    ),
    (
        [Turn("\x1b[31m⚙ fake(1) → 2", "\x1b]0;title\x07 \u202eright to left\n[bold]markup[/]")],
        "context",
    ),
)


def completion(index: int, turns: Sequence[Turn], finish: ev.Finish) -> ev.Rollout:
    """One dialogue as the engine records it."""
    text, ends, spans = "", list[int](), list[ev.Span]()
    for number, turn in enumerate(turns):
        start, begin = len(ends), len(text)
        text += turn.said
        ends += [*range(begin + 3, len(text), 3), len(text), len(text)]
        spans.append(
            ev.Span(
                start=start,
                length=len(ends) - start,
                kind="model",
                turn=number,
                chars=len(turn.said),
            )
        )
        if not turn.reply and not turn.info and not turn.error:
            continue
        start, heard = len(ends), f"\n{turn.reply}\n" if turn.reply else ""
        ends += [len(text), len(text) + len(heard)] if heard else []
        text += heard
        spans.append(
            ev.Span(
                start=start,
                length=len(ends) - start,
                kind="environment",
                turn=number,
                chars=len(heard),
                name=turn.name,
                ms=3.0,
                error=turn.error,
                reward=turn.reward,
                info=turn.info,
            )
        )
    total = None if finish == "environment_error" else sum(turn.reward or 0 for turn in turns)
    return ev.Rollout(
        index=index,
        ids=tuple(range(3, 3 + len(ends))),
        text=text,
        finish=finish,
        reward=total,
        rewards=(
            ev.RewardValue(
                name="Guess", value=total, weight=1.0, reason=BROKEN if total is None else ""
            ),
        ),
        advantage=total if total is None else total - 0.4,
        spans=tuple(spans),
        ends=tuple(ends),
        sampler_logprobs=tuple(-0.3 for _ in ends),
    )


def group(index: int, prompt: str, games: Sequence[tuple[list[Turn], ev.Finish]]) -> ev.Group:
    """The dialogues of one prompt."""
    return ev.Group(
        index=index,
        origin="train",
        example_key=f"guess-{index}",
        prompt_text=prompt,
        prompt_ids=(1, 2),
        prompt_hash=prompt,
        target="",
        reward_mean=0.4,
        reward_std=0.4,
        rollouts=tuple(completion(i, *game) for i, game in enumerate(games)),
    )


def groups() -> tuple[ev.Group, ev.Group]:
    """The groups of a step."""
    return group(0, "My number is from 1 to 100.", GAMES), group(1, "17 * 23 = ?", SUMS)


def token_numbers(of: ev.Group, seed: int = 0) -> tuple[ev.TokenNumbers, ...]:
    """Token numbers; those of replies are the largest of all and outside the loss."""
    found = []
    for one, row in zip(of.rollouts, numbers(random.Random(seed), of, 2), strict=True):
        replies = {
            place
            for span in one.spans
            if span.kind == "environment"
            for place in range(span.start, span.start + span.length)
        }
        count = len(one.ids)
        wild = tuple(3.0 if place in replies else 0.0 for place in range(count))
        moved = tuple(x + y for x, y in zip(row.passes[1], wild, strict=True))
        found.append(
            replace(
                row,
                passes=(row.old, moved),
                after=moved,
                reference=tuple(x - y for x, y in zip(row.reference, wild, strict=True)),
                entropy=tuple(9.0 if place in replies else 0.3 for place in range(count)),
                mask=tuple(
                    int(place not in replies and one.finish != "environment_error")
                    for place in range(count)
                ),
                updates=(ev.UpdateTotals(rows=8, tokens=count),) * 2,
            )
        )
    return tuple(found)


def run_events(steps: int = 2) -> Iterator[ev.Event]:
    """A run of dialogues with all token numbers."""
    yield replace(started(steps), config={**CONFIG, "task": {"name": "guess"}})
    yield ev.ModelLoaded(
        step=0, path="starter", parameters=1, trainable=1, dtype="float32", seconds=0.1
    )
    for step in range(1, steps + 1):
        for one in groups():
            yield ev.GroupScored(step=step, group=one)
        for one in groups():
            yield ev.TokensScored(
                step=step, group=one.index, origin="train", numbers=token_numbers(one)
            )
        for index in (1, 2):
            yield ev.PassFinished(
                step=step,
                index=index,
                minibatch=1,
                loss=0.0,
                clip_low=0.0,
                clip_high=0.0,
                kl_to_old=0.0,
                grad_norm=0.1,
                learning_rate=1e-4,
            )
        yield ev.StepFinished(
            step=step, metrics={"reward": 0.4, "step_time": 1.0}, tokens=99, elapsed=1.0
        )


def sampling(waiting: bool = True) -> Iterator[ev.Event]:
    """The run, then a step in which two games are played and one answer waits."""
    yield from run_events()
    yield ev.PhaseStarted(step=3, phase="generate", total=8)
    yield ev.PromptsStarted(
        step=3,
        prompts=tuple(
            ev.PromptStarted(
                group=one.index, origin="train", prompt_text=one.prompt_text, target="", rows=4
            )
            for one in groups()
        ),
    )
    rows = [
        delta
        for one in groups()
        for answer in one.rollouts
        for delta in deltas(one.index, answer, waits=waiting and answer.index == 1)
    ]
    for delta in rows:
        yield ev.RolloutsAdvanced(
            step=3, rows=(delta,), tokens=40, finished=0, total=8, tokens_per_second=math.pi
        )


def deltas(index: int, one: ev.Rollout, *, waits: bool) -> Iterator[ev.RowDelta]:
    """A dialogue as it happens, a part at a time; one that waits has not heard the last reply."""
    at = 0
    spans = one.spans[:-1] if waits and one.spans[-1].kind == "environment" else one.spans
    for place, span in enumerate(spans):
        last = place == len(spans) - 1
        yield ev.RowDelta(
            group=index,
            index=one.index,
            text=one.text[at : at + span.chars],
            tokens=span.length if span.kind == "model" else 0,
            spans=(ev.unscored(span),),
            finish=one.finish if last and not waits else None,
            waits=waits and last,
        )
        at += span.chars
