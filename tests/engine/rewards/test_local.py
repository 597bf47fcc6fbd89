"""Reward functions that run in this process, beside those of the reward process."""

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.errors import EngineError
from grpo_engine.rewards.client import RewardClient
from grpo_engine.rewards.load import load_reward
from grpo_engine.rewards.outcome import FunctionResult
from grpo_engine.tasks.base import RewardSpec
from tests.engine.rewards.scored import pid_of, values_of

TEXTS = ["no", "one two", "three"]
FILE = """
import os
async def slow(completions, **_): return [float(os.getpid())] * len(completions)
def words(completions, **_): return [float(len(text.split())) for text in completions]
"""


def score(
    functions: dict[str, Callable[..., Any]], folder: Path, *others: str, step: int = 1
) -> list[FunctionResult]:
    specs = [RewardSpec(name=name) for name in (*functions, *others)]
    with RewardClient(specs, folder, 20.0, local=functions) as worker:
        return worker.score(
            ["p"] * 3, TEXTS, [[1]] * 3, {"answer": ["1", "2", "3"]}, {"global_step": step}
        )


def test_a_local_function_runs_here_and_needs_no_other_process(tmp_path: Path) -> None:
    seen: list[Any] = []

    def mine(completions: list[str], answer: list[str], **_: Any) -> list[float]:
        seen.append((os.getpid(), threading.current_thread(), answer))
        return [float(len(text)) for text in completions]

    specs = [RewardSpec(name="python:mine")]
    with RewardClient(specs, tmp_path, 1.0, local={"python:mine": mine}) as worker:
        assert (pid_of(worker), worker.names) == (None, ("mine",))
        found = worker.score(["p"] * 3, TEXTS, [[1]] * 3, {"answer": ["1", "2", "3"]}, {})
    assert values_of(found) == ((2.0, 7.0, 5.0),)
    assert seen == [(os.getpid(), threading.current_thread(), ["1", "2", "3"])]


def test_local_and_other_functions_keep_their_order_and_their_sides(tmp_path: Path) -> None:
    (tmp_path / "r.py").write_text(FILE)

    async def here(completions: list[str], **_: Any) -> list[float]:
        await asyncio.sleep(0)
        return [float(os.getpid())] * len(completions)

    async def also(completions: list[str], **_: Any) -> list[float]:
        return [1.0] * len(completions)

    specs = [
        RewardSpec(name=name)
        for name in (
            f"{tmp_path}/r.py:slow",
            "python:here",
            f"{tmp_path}/r.py:words",
            "python:also",
        )
    ]
    local = {"python:here": here, "python:also": also}
    with RewardClient(specs, tmp_path, 20.0, local=local) as worker:
        pid = pid_of(worker)
        for _ in range(2):  # async functions keep their loop between calls
            found = worker.score(["p"] * 3, TEXTS, [[1]] * 3, {}, {"global_step": 1})
    assert worker.names == ("slow", "here", "words", "also")
    assert pid not in (None, os.getpid())
    here_pid = float(os.getpid())
    assert values_of(found) == (
        (float(pid or 0),) * 3,
        (here_pid,) * 3,
        (1.0, 2.0, 1.0),
        (1.0,) * 3,
    )


def test_a_loop_that_already_runs_in_this_thread_does_not_matter(tmp_path: Path) -> None:
    async def here(completions: list[str], **_: Any) -> list[float]:
        return [0.5] * len(completions)

    async def cell() -> list[FunctionResult]:
        return score({"python:here": here}, tmp_path)

    assert values_of(asyncio.run(cell())) == ((0.5, 0.5, 0.5),)


def test_an_interrupt_is_not_a_functions_failure(tmp_path: Path) -> None:
    def interrupted(**_: Any) -> list[float]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        score({"python:interrupted": interrupted}, tmp_path)


def test_a_local_function_cannot_change_what_another_one_gets(tmp_path: Path) -> None:
    def greedy(completions: list[str], **_: Any) -> list[float]:
        return [float(len(completions.pop())) for _ in range(3)]

    found = score({"python:greedy": greedy}, tmp_path, "length")
    assert values_of(found)[0] == (5.0, 7.0, 2.0)
    assert None not in values_of(found)[1]


def test_without_its_process_a_local_function_says_how_to_resume() -> None:
    with pytest.raises(
        EngineError, match=r"reward 'mine' is .* grpo_engine\.resume\(run, rewards="
    ):
        load_reward("python:mine", {})
