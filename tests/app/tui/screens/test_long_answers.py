"""Rollouts of long answers: the answer after the thinking opens."""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pytest

from grpo_engine import events as ev
from grpo_tui.app.inspector.stored import LONG_THINKING, RolloutTokens
from tests.app.compared import workbench
from tests.app.frames import SIZES
from tests.app.inspector.kit import rollout
from tests.app.stored import numbers, record, run_events
from tests.app.tui.screens.test_rollouts import opened
from tests.app.walk import walk

TOKENS = 8192
END = ("</think>", "\n\n", "The ", "answer ", "is ", "42", ".")


def words(rng: random.Random, thinking: int) -> tuple[str, ...]:
    """An answer of so many tokens before `</think>`, and seven from there on."""
    return ("<think>", *rng.choices(["so ", "the ", "sum ", "wait, "], k=thinking - 1), *END)


def long_events() -> Iterator[ev.Event]:
    """A run whose first group has answers of different lengths, the last one without thinking."""
    rng = random.Random(1)
    for event in run_events(steps=1, prompts=1):
        if isinstance(event, ev.GroupScored) and event.group.origin == "train":
            texts = [words(rng, TOKENS - 7), words(rng, 2000), words(rng, 600), END[2:]]
            rollouts = (
                replace(
                    answer,
                    text="".join(tokens),
                    ids=tuple(range(len(tokens))),
                    ends=tuple(accumulate(map(len, tokens))),
                    sampler_logprobs=(-0.3,) * len(tokens),
                )
                for answer, tokens in zip(event.group.rollouts, texts, strict=True)
            )
            event = replace(event, group=replace(event.group, rollouts=tuple(rollouts)))
            group = event.group
        elif isinstance(event, ev.TokensScored) and event.origin == "train":
            event = replace(event, numbers=numbers(rng, group, 2))
        yield event


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "runs.db"
    record(path, long_events())
    return path


def test_thinking_is_long_from_a_length_on_and_only_before_an_answer() -> None:
    def thinking(*texts: str) -> int:
        return RolloutTokens(rollout=rollout(0, text="".join(texts)), texts=texts).thinking

    thought = ("a",) * LONG_THINKING
    assert thinking(*thought, *END) == LONG_THINKING + 2  # up to the first word
    assert thinking(*thought[2:], *END) == 0
    assert thinking(*thought, "a", "b") == 0  # it never ends
    assert thinking(*thought, "</think>", "\n") == 0  # nothing comes after it
    assert thinking(*thought, "a</th", "ink>b", "c") == LONG_THINKING + 1  # that holds the b


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
async def test_an_answer_of_8192_tokens_opens_after_its_thinking(
    size: tuple[int, int], store: Path
) -> None:
    async with walk(workbench(store), size) as on:
        screen = await opened(on, step=1, group=0, rollout=0)
        begins = TOKENS - len(END[2:])
        assert screen.view.token == begins
        text = on.text
        assert "The answer is 42" in text.replace("\n", " ")
        assert "<think>" not in text
        await on.press("pageup")
        assert screen.view.token == 0
        assert "<think>" in on.text
        await on.press("pagedown")
        assert screen.view.token == begins
        assert "<think>" not in on.text


async def test_the_next_answer_is_read_from_where_it_begins_too(store: Path) -> None:
    async with walk(workbench(store)) as on:
        screen = await opened(on, step=1, group=0, rollout=0)
        await on.press("right", "down")
        assert (screen.view.rollout_at, screen.view.token) == (1, 2002)
        await on.press("home", "down")  # in the thinking the token stays
        assert (screen.view.rollout_at, screen.view.token) == (2, 0)
        await on.press("pagedown", "down")
        assert (screen.view.rollout_at, screen.view.token) == (3, 0)
