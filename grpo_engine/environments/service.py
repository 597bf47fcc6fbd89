"""The environments in the sandbox: loads them and makes the calls of their episodes."""

import copy
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

from grpo_engine import names
from grpo_engine.environments import verifiers
from grpo_engine.environments.adapters import (
    ProtocolEpisodes,
    ToolEpisodes,
    UnusableError,
    check_length,
    follows_protocol,
    tools_of,
)
from grpo_engine.environments.agents import PREFIX, Player, Program, command_of
from grpo_engine.errors import BrokenEnvironmentError
from grpo_engine.platform.scratch import scratch
from grpo_engine.sandbox.client import LOADING
from grpo_engine.sandbox.program import Server

NO_SEED = "if it replies to answers, begin episodes by `reset(row, seed)`; if it is a tool, "
FORMS = "a package's name, file.py:name or module:name"


class EnvironmentService:
    """The environments by name, and their episodes by slot."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._tools: dict[str, Callable[..., Any]] = {}
        self._make: dict[str, Callable[[], Any]] = {}
        self._episodes: dict[tuple[str, int], Any] = {}
        self._open = ExitStack()

    def load(
        self,
        tools: Sequence[str],
        environments: Mapping[str, str],
        options: Mapping[str, Any],
        agents: Mapping[str, Any],
    ) -> dict[str, dict[str, Any]]:
        """Load tools and environments; an environment without a name has the tools alone.

        Returns title and tools of each environment, and which rewards it gives.
        """
        for name in tools:
            tool = self._find(name, "tool")
            self._tools[getattr(tool, "__name__", name)] = tool
        for key, name in environments.items():
            if name.startswith((PREFIX, verifiers.PREFIX)):
                self._make[key] = self._agents(name, options, **agents)
            else:
                factory = self._find(name, "environment") if name else None
                if callable(factory):
                    _check_factory(name, factory)
                self._make[key] = partial(self._new, factory)
        return {key: self._spec_of(key, name) for key, name in environments.items()}

    def _spec_of(self, key: str, name: str) -> dict[str, Any]:
        episodes = self._make[key]()
        if self._tools and not isinstance(episodes, ToolEpisodes):
            raise BrokenEnvironmentError(
                f"environment {name} replies to whole answers, so task.tools cannot be called "
                "beside it; make them methods of a class without `step`"
            )
        if isinstance(episodes, Player):
            return {"name": episodes.name, "has_reward": True, "is_agent": True}
        title = type(episodes.instance).__name__ if name else "tools"
        if isinstance(episodes, ProtocolEpisodes):
            return {"name": title, "has_reward": True, "by_turn": True}
        if not episodes.tools:
            raise BrokenEnvironmentError(
                f"environment {name} has neither `reset(row, seed)` and `step(answer)` nor public "
                "methods that could be tools"
            )
        has_reward = callable(getattr(episodes.instance, "get_reward", None))
        tools = [_schema(name, tool) for name, tool in episodes.tools.items()]
        return {"name": title, "has_reward": has_reward, "tools": tools}

    def call(
        self,
        method: str,
        name: str,
        slot: int,
        arguments: Mapping[str, Any],
        *,
        repeat: Mapping[str, Any] | None = None,
    ) -> Any:
        """Reset, step or finish an episode; after a loss of its process it is repeated first."""
        if repeat is not None:
            self.call("reset", name, slot, repeat["start"])
            for step, messages in repeat["past"]:
                if self.call("step", name, slot, step)["messages"] != messages:
                    raise UnusableError(
                        "its process was lost to another episode, and it does not repeat its "
                        "replies: the row and the seed must decide them"
                    )
        episode = self._episodes.get((name, slot))
        if isinstance(episode, Player) and method == "reset":
            self._server.run(episode.drop)
            episode = None
        if episode is None:
            episode = self._episodes[name, slot] = self._make[name]()
        result = self._server.run(getattr(episode, method), **arguments)
        check_length(len(json.dumps(result)))
        return result

    def close(self) -> None:
        self._open.close()

    def _agents(
        self,
        name: str,
        options: Mapping[str, Any],
        *,
        sampling: Mapping[str, float],
        by_status: bool,
        named: Sequence[str],
    ) -> Callable[[], Player]:
        if self._server.objects:
            raise BrokenEnvironmentError(
                f"{name} cannot run beside tools or environments of this process; give those as "
                "files"
            )
        self._server.declared = LOADING
        if name.startswith(verifiers.PREFIX):
            taskset = verifiers.Taskset(verifiers.load(name, options))
            return partial(verifiers.TasksetEpisode, sampling, taskset)
        folder = self._open.enter_context(scratch("agents"))
        return partial(
            Program, sampling, folder, command_of(name), by_status=by_status, named=named
        )

    def _find(self, name: str, role: str) -> Any:
        """The object that a setting names."""
        if name in self._server.objects:
            return self._server.objects[name]
        purpose = names.Purpose(f"{role} {name}", BrokenEnvironmentError, FORMS)
        item, _ = names.resolve("environments", role, name, purpose)
        self._server.allow_memory(item)
        return item

    def _new(self, factory: Any) -> ProtocolEpisodes | ToolEpisodes:
        """A new instance; of what is one already, each rollout gets a copy."""
        instance, run = factory() if callable(factory) else copy.deepcopy(factory), self._server.run
        if follows_protocol(instance):
            return ProtocolEpisodes(run, instance)
        return ToolEpisodes(run, {**self._tools, **tools_of(instance)}, instance)


def _check_factory(name: str, factory: Callable[..., Any]) -> None:
    """Refuse a class that cannot be made without arguments."""
    try:
        with suppress(ValueError):  # Some built-in callables have no signature.
            inspect.signature(factory).bind()
    except TypeError as error:
        raise BrokenEnvironmentError(
            f"environment {name}: {error}; the class is made without arguments, so give its "
            "parameters defaults"
        ) from error


def _schema(name: str, tool: Callable[..., Any]) -> Any:
    from transformers.utils.chat_template_utils import get_json_schema

    try:
        return get_json_schema(tool)
    except Exception as error:  # Users' code may raise anything.
        raise BrokenEnvironmentError(
            f"tool {name} cannot be described to the model ({error}); "
            f"{NO_SEED if name == 'step' else ''}give it a docstring with a line for each "
            "parameter under `Args:`, and types"
        ) from error
