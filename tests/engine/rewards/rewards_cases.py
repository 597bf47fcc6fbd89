"""Reward functions as users write them, good and bad; tests load them by path."""

# ruff: noqa: ARG001, ARG002 - a signature is what many of these are about

import asyncio
import ctypes
import os
import random
import subprocess
import sys
import time
from typing import Any


def length_of(completions: list[Any], **kwargs: Any) -> list[float]:
    return [float(len(completion)) for completion in completions]


def loaded_before(completions: list[str], **kwargs: Any) -> list[float]:
    return [float(name in sys.modules) for name in completions]


def only_some(completions: list[str], answer: list[str]) -> list[float]:
    return [float(a in c) for c, a in zip(completions, answer, strict=True)]


def sees_all(
    prompts: Any, completions: Any, completion_ids: Any, trainer_state: Any, **kwargs: Any
) -> list[float]:
    kwargs["log_extra"]("keys", [" ".join(sorted(kwargs)) for _ in completions])
    kwargs["log_metric"]("step_seen", trainer_state.global_step)
    kwargs["log_metric"]("step_seen", trainer_state.max_steps)
    assert isinstance(prompts[0], list)
    assert completions[0][0]["role"] == "assistant"
    return [float(len(ids)) for ids in completion_ids]


BEGUN = {"one": 0, "other": 0}


async def both_begun(own: str) -> None:
    """Wait until both functions that wait for each other were called equally often."""
    BEGUN[own] += 1
    while BEGUN["one"] != BEGUN["other"]:
        await asyncio.sleep(0)


async def waits_for_the_other(completions: list[str], **kwargs: Any) -> list[float]:
    await both_begun("one")
    return [1.0] * len(completions)


async def also_async(completions: list[str], **kwargs: Any) -> list[None]:
    await both_begun("other")
    return [None] * len(completions)


def fails_on_three(completions: list[str], **kwargs: Any) -> list[float]:
    return [float(1 / (3 - int(completion))) for completion in completions]


def fails_on_three_and_gives_nan_on_four(completions: list[str], **kwargs: Any) -> list[float]:
    return [float("nan") if c == "4" else 1 / (3 - int(c)) for c in completions]


def tell_process(kwargs: dict[str, Any]) -> None:
    """Write the process id to the file that the test reads."""
    if "path" in kwargs:
        with open(kwargs["path"][0], "w") as file:  # noqa: PTH123
            file.write(str(os.getpid()))


def hangs(completions: list[str], **kwargs: Any) -> list[float]:
    tell_process(kwargs)
    while True:
        time.sleep(0.01)


def hangs_in_c(completions: list[str], **kwargs: Any) -> list[float]:
    tell_process(kwargs)
    ctypes.PyDLL(None).sleep(1000)  # holds the GIL
    return []


def crashes(completions: list[str], **kwargs: Any) -> list[float]:
    os._exit(7)


def fails_slowly_alone(completions: list[str], **kwargs: Any) -> list[float]:
    if len(completions) == 1:
        time.sleep(0.6)
    raise ValueError(f"{len(completions)} texts")


def exits(completions: list[str], **kwargs: Any) -> list[float]:
    sys.exit(3)


def one_too_few(completions: list[str], **kwargs: Any) -> list[float]:
    return [1.0] * (len(completions) - 1)


def gives_words(completions: list[str], **kwargs: Any) -> list[Any]:
    return ["good" if i == 1 else 1.0 for i in range(len(completions))]


def gives_odd_numbers(completions: list[str], **kwargs: Any) -> list[Any]:
    return [float("nan"), float("inf"), True, None][: len(completions)]


def gives_one_number(completions: list[str], **kwargs: Any) -> Any:
    return 1.0


def needs_solution(completions: list[str], solution: list[str], **kwargs: Any) -> list[float]:
    return [1.0] * len(completions)


def gives_reasons_in_place_of_steps(completions: list[str], **kwargs: Any) -> list[Any]:
    return [(1.0, "right") for _ in completions]


def in_steps(completions: list[str], **kwargs: Any) -> list[Any]:
    return [[(3, 1.0), (len(c), 0.0)] for c in completions]


def with_options(completions: list[str], bonus: float = 0.0, **kwargs: Any) -> list[float]:
    return [bonus] * len(completions)


def starts_a_child(completions: list[str], path: list[str], **kwargs: Any) -> list[float]:
    child = subprocess.Popen(["sleep", "1000"])
    with open(path[0], "w") as file:  # noqa: PTH123
        file.write(f"{os.getpid()} {child.pid}")
    time.sleep(1000)
    return []


DAEMON = """
import os, subprocess, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        os.closerange(0, 3)
        os.execve("/bin/sleep", ["sleep", "1000"], {})
    os._exit(0)
os._exit(0)
"""


def leaves_daemons(completions: list[str], path: list[str], **kwargs: Any) -> list[float]:
    own_session = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    daemon = subprocess.check_output([sys.executable, "-c", DAEMON], text=True).split()
    with open(path[0], "w") as file:  # noqa: PTH123
        file.write(f"{own_session.pid} {' '.join(daemon)}")
    return [0.0] * len(completions)


def leaves_daemons_and_hangs(completions: list[str], path: list[str], **kwargs: Any) -> list[float]:
    leaves_daemons(completions, path)
    time.sleep(1000)
    return []


def changes_its_input(completions: list[str], **kwargs: Any) -> list[float]:
    completions[:] = ["gone"] * len(completions)
    return [random.random() * 0] * len(completions)


class Judge:
    def __call__(self, completions: list[str], **kwargs: Any) -> list[float]:
        return [2.0] * len(completions)


judge = Judge()


def fills_memory(completions: list[str], **kwargs: Any) -> list[float]:
    return [len(bytes(6 << 30)) / (1 << 30) for _ in completions]


def fills_memory_as_declared(completions: list[str], **kwargs: Any) -> list[float]:
    return fills_memory(completions)


fills_memory_as_declared.memory_gb = 8  # type: ignore[attr-defined]


async def fills_memory_later(completions: list[str], **kwargs: Any) -> list[float]:
    return fills_memory(completions)


async def blocks_the_loop(completions: list[str], **kwargs: Any) -> list[float]:
    time.sleep(1000)
    return []


async def also_length_of(completions: list[str], **kwargs: Any) -> list[float]:
    return length_of(completions)
