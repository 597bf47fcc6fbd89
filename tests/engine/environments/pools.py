"""Environments in their processes, for tests, and an interpreter with verifiers."""

import fcntl
import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.config.settings import RunConfig
from grpo_engine.environments.client import EnvironmentClient, Episode
from grpo_engine.rollouts.dialogue import EnvironmentReply
from grpo_engine.tasks.base import Task
from tests.smollm2 import CACHE


def client_of(
    tools: Sequence[str],
    environments: Mapping[str, str],
    folder: Path,
    limit: float,
    interrupted: Callable[[], bool] = lambda: False,
    objects: Mapping[str, Any] | None = None,
    *,
    functions: Sequence[str] = (),
    **task: Any,
) -> EnvironmentClient:
    """The client of these environments, with a time limit, as for a run with these settings."""
    names: Any = environments.get("", environments)
    config = RunConfig.model_validate(
        {
            "task": {"tools": tools, "environment": names, **task},
            "rewards": {"time_limit": limit, "functions": functions},
        }
    )
    return EnvironmentClient(config, Task(name="t", train=()), folder, interrupted, objects)


def play(
    environments: EnvironmentClient,
    rows: Sequence[Mapping[str, Any]],
    *texts: str,
    turns: int | None = None,
) -> list[list[EnvironmentReply]]:
    """The replies of an episode for each row, until it ends or has had its turns.

    The completions are these texts in turn, and then the last one again and again.
    """
    environments.begin(
        [Episode(environment="", row=row, seed=3, index=index) for index, row in enumerate(rows)]
    )
    replies: list[list[EnvironmentReply]] = [[] for _ in rows]
    running = set(range(len(rows)))

    def proceed(index: int, reply: EnvironmentReply) -> None:
        number = len(replies[index])
        if reply.done or reply.error or number == turns:
            running.discard(index)
        else:
            environments.submit(index, texts[min(number, len(texts) - 1)])

    for index in range(len(rows)):
        begun = environments.last(index)
        replies[index] = [begun] if begun.error else []
        proceed(index, begun)
    while running:
        for index, reply in environments.replies(0.1):
            replies[index].append(reply)
            proceed(index, reply)
    return replies


VERIFIERS = "verifiers==0.4.0"


@functools.cache
def python() -> str:
    """An interpreter with verifiers; skips the test if it cannot be installed."""
    if given := os.environ.get("GRPO_TUI_VERIFIERS"):
        return given
    folder = CACHE / VERIFIERS.replace("==", "-")
    found, making = folder / "bin" / "python", folder.with_name("verifiers.making")
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "verifiers.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a parallel test may be installing it
        if not found.exists():
            shutil.rmtree(folder, ignore_errors=True)
            pip = [f"{making}/bin/python", "-m", "pip", "install", "-q", VERIFIERS, "uv"]
            for command in ([sys.executable, "-m", "venv", str(making)], pip):
                made = subprocess.run(
                    command, capture_output=True, text=True, check=False, timeout=1200
                )
                if made.returncode:
                    pytest.skip(f"{VERIFIERS} could not be installed: {made.stderr.strip()[-200:]}")
            making.rename(folder)  # Python finds its environment by its own place
    return str(found)
