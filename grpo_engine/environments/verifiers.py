"""Tasksets for verifiers 0.4, whose harness sends requests to the endpoint as a program does.

They run in an interpreter that has the package, each task in verifiers' own subprocess runtime.
"""

import os
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from grpo_engine.environments.adapters import UnusableError, number
from grpo_engine.environments.agents import Outcome, Player
from grpo_engine.environments.endpoint import MODEL
from grpo_engine.environments.programs import search_path
from grpo_engine.errors import BrokenEnvironmentError
from grpo_engine.sandbox.report import plain

PREFIX = "verifiers:"
INDEX = "verifiers_index"  # column: the index of a row in its taskset


def load(name: str, options: Mapping[str, Any]) -> Any:
    """The environment of a package's taskset, with options as `vf-eval` has them."""
    package = name.removeprefix(PREFIX).strip()
    try:
        from verifiers.v1 import SingleAgentEnv
        from verifiers.v1.utils import loaders
    except ImportError as error:
        raise BrokenEnvironmentError(
            f"{name}: {sys.executable} has no verifiers 0.4 ({error}); install it with the taskset "
            "for a Python and name that one in task.interpreter"
        ) from error
    os.environ["PATH"] = search_path()  # Harnesses look for uv.
    sys.path.append(str(Path.cwd()))
    agent = {"runtime": {"type": "subprocess"}, **options.get("agent", {})}
    taskset = {"id": package, **options.get("taskset", {})}
    try:
        environment = loaders.load_environment(
            loaders.resolve_env_config({**options, "taskset": taskset, "agent": agent})
        )
        problem = "" if isinstance(environment, SingleAgentEnv) else "it has several agents"
    except (ValueError, TypeError, AttributeError, ImportError) as error:
        problem = str(error)
    if problem:
        raise BrokenEnvironmentError(
            f"{name} is no taskset of one agent for verifiers 0.4 ({problem}); packages for 0.1, "
            "with `load_environment`, are no longer taken"
        )
    return environment


class TasksetRows:
    """The data of a taskset, for the task of the same name."""

    def __init__(self, _server: object) -> None:
        """Needs nothing of the process."""

    def read(self, name: str, options: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Its tasks as rows."""
        taskset = load(name, options).taskset
        if not taskset.bounded:
            raise BrokenEnvironmentError(f"{name} has no last task; give options that bound it")
        rows = []
        for index, task in enumerate(taskset):
            data = task.data.model_dump(mode="json", exclude_defaults=True)
            prompt = task.data.prompt_text or task.data.name or f"task {index}"
            rows.append({**plain(data), "prompt": prompt, INDEX: index})
        return rows


class Taskset:
    """A taskset, and what serves its rollouts, which starts with the first."""

    def __init__(self, environment: Any) -> None:
        self.environment = environment
        self.name = str(environment.config.taskset.id)
        self.tasks = list(environment.taskset)
        self._serving: AsyncExitStack | None = None

    async def start(self) -> None:
        if self._serving is None:
            self._serving = AsyncExitStack()
            await self._serving.enter_async_context(self.environment.serving())


class TasksetEpisode(Player):
    """One episode of a taskset."""

    def __init__(self, sampling: Mapping[str, float], taskset: Taskset) -> None:
        super().__init__(taskset.name, sampling)
        self._taskset = taskset

    async def play(self, row: Mapping[str, Any], _: tuple[int, int], url: str, key: str) -> Outcome:
        """Run the episode of a row."""
        from verifiers.v1 import EvalClientConfig, ModelContext

        await self._taskset.start()
        variable = f"GRPO_TUI_API_KEY_{id(self)}"  # Programs do not inherit it.
        os.environ[variable] = key
        client = EvalClientConfig(base_url=url, api_key_var=variable)
        context, task = ModelContext(model=MODEL, client=client), self._taskset.tasks[row[INDEX]]
        try:
            end = await self._taskset.environment.run_episode(task, context)
        finally:
            del os.environ[variable]
        (trace,) = end.traces or [None]
        errors = [*end.errors, *(trace.errors if trace is not None else ())]
        if trace is None or (errors and not self._is_over):
            raise UnusableError(f"the episode ended with {errors[-1] if errors else 'no trace'}")
        scores = {name: value.value for name, value in trace.rewards.items() if value is not None}
        info = {name: plain(value) for name, value in trace.metrics.items() if value is not None}
        return number(trace.reward), scores | info
