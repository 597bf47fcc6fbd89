"""The environments in the sandbox: loads them and makes the calls of their episodes."""

import copy
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from grpo_engine import names
from grpo_engine.environments import verifiers
from grpo_engine.environments.adapters import (
    Await,
    ProtocolEpisodes,
    ToolEpisodes,
    UnusableError,
    follows_protocol,
    tools_of,
)
from grpo_engine.errors import BrokenEnvironmentError
from grpo_engine.sandbox.event_loop import EventLoop
from grpo_engine.sandbox.program import Server

FORMS = "a package's name, file.py:name or module:name"
NEEDS_MAIN = "signal only works in main thread"  # Python's words


class EnvironmentService:
    """The environments by name, and their episodes by slot."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._tools: dict[str, Callable[..., Any]] = {}
        self._make: dict[str, Callable[[], Any]] = {}
        self._episodes: dict[tuple[str, int], Any] = {}
        self._loop = EventLoop()

    def close(self) -> None:
        self._loop.close()

    def load_tool(self, name: str) -> None:
        tool = self._find(name, "tool")
        self._tools[getattr(tool, "__name__", name)] = tool

    def load_environment(
        self, key: str, name: str, options: Mapping[str, Any], describe: bool
    ) -> dict[str, Any]:
        """Load one environment after the tools; an empty name has the tools alone."""
        if name.startswith(verifiers.PREFIX):
            if self._tools:
                raise BrokenEnvironmentError(
                    f"environment {name} has its own tools; empty task.tools"
                )
            package = verifiers.load(name, options)
            self._make[key] = lambda: verifiers.Episodes(package)
            self._server.allow_memory(package)
            title, tools = name.removeprefix(verifiers.PREFIX), verifiers.tools(package)
            return {"name": title, "has_reward": True, "tools": tools}
        if name:
            self._make[key] = functools.partial(self._new, self._find(name, "environment"))
        else:
            self._make[key] = lambda: ToolEpisodes(self._tools)
        return self._described(name, self._make[key]()) if describe else {}

    def call(
        self, method: str, name: str, slot: int, limit: float, *,
        repeat: Mapping[str, Any] | None = None, **arguments: Any,
    ) -> Any:  # fmt: skip
        """Reset, step or finish an episode; after a loss of its process it is repeated first."""
        if repeat is not None:
            self.call("reset", name, slot, limit, **repeat["job"])
            for answer, messages in repeat["past"]:
                if self.call("step", name, slot, limit, answer=answer)["messages"] != messages:
                    raise UnusableError(
                        "its process was lost to another episode, and it does not repeat its "
                        "replies: the row and the seed must decide them"
                    )
        if (name, slot) not in self._episodes:
            self._episodes[name, slot] = self._make[name]()
        make = getattr(self._episodes[name, slot], method)
        value = make(**arguments, wait=self._await(limit))
        return self._loop.wait(value, limit) if inspect.isawaitable(value) else value

    def _await(self, limit: float) -> Await:
        """A function that calls users' code, and waits for the value if that is awaitable."""

        def call(function: Callable[..., Any], /, *args: Any, **keywords: Any) -> Any:
            try:
                value = function(*args, **keywords)
            except ValueError as error:
                if self._server.main is None or not str(error).startswith(NEEDS_MAIN):
                    raise
                value = self._server.main.make(functools.partial(function, *args, **keywords))
            return self._loop.wait(value, limit) if inspect.isawaitable(value) else value

        return call

    def _find(self, name: str, what: str) -> Any:
        """The object that a setting names."""
        if name in self._server.objects:
            return self._server.objects[name]
        names.refuse_missing(name, what)
        wanted = names.Purpose(f"{what} {name}", BrokenEnvironmentError, FORMS)
        found = names.find_installed("environments", name, wanted) or names.find(name, wanted)
        self._server.allow_memory(found[0])
        return found[0]

    def _new(self, factory: Any) -> ProtocolEpisodes | ToolEpisodes:
        """A new instance; of what is one already, each rollout gets a copy."""
        instance = factory() if callable(factory) else copy.deepcopy(factory)
        if follows_protocol(instance):
            return ProtocolEpisodes(instance)
        return ToolEpisodes({**self._tools, **tools_of(instance)}, instance)

    def _described(self, name: str, episode: ProtocolEpisodes | ToolEpisodes) -> dict[str, Any]:
        title = type(episode.instance).__name__ if name else "tools"
        if isinstance(episode, ProtocolEpisodes):
            if self._tools:
                raise BrokenEnvironmentError(
                    f"environment {name} replies to whole answers, so task.tools cannot be called "
                    "beside it; make them methods of a class without `step`"
                )
            return {"name": title, "has_reward": True, "by_turn": True}
        if not episode.tools:
            raise BrokenEnvironmentError(
                f"environment {name} has neither `reset(row, seed)` and `step(answer)` nor public "
                "methods that could be tools"
            )
        has_reward = callable(getattr(episode.instance, "get_reward", None))
        tools = [_schema(name, tool) for name, tool in episode.tools.items()]
        return {"name": title, "has_reward": has_reward, "tools": tools}


def _schema(name: str, tool: Callable[..., Any]) -> Any:
    from transformers.utils.chat_template_utils import get_json_schema

    try:
        return get_json_schema(tool)
    except Exception as error:  # users' code may raise anything
        raise BrokenEnvironmentError(
            f"tool {name} cannot be described to the model ({error}); give it a docstring with "
            "a line for each parameter under `Args:`, and types"
        ) from error
