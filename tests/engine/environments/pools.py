"""Environments in their processes, for tests."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_engine.config.settings import RunConfig
from grpo_engine.environments.client import EnvironmentClient
from grpo_engine.tasks.base import Task


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
