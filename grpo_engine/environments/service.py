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
    ServerTool,
    ToolEpisodes,
    UnusableError,
    check_length,
    follows_protocol,
    tools_of,
)
from grpo_engine.environments.agents import PREFIX, Player, Program
from grpo_engine.environments.programs import command_of
from grpo_engine.environments.tool_servers import ToolServer, is_server
from grpo_engine.errors import BrokenEnvironmentError
from grpo_engine.platform.scratch import scratch
from grpo_engine.sandbox.client import LOADING
from grpo_engine.sandbox.program import Server
from grpo_engine.sandbox.report import TooLateError

NO_SEED = "if it replies to answers, begin episodes by `reset(row, seed)`; if it is a tool, "
FORMS = "a package's name, file.py:name or module:name"


class EnvironmentService:
    """The environments by name, and their episodes by slot."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._tools: dict[str, Callable[..., Any]] = {}
        self._sources: dict[str, str] = {}  # entries of task.tools by their tools' names
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
            if is_server(name):
                for tool in self._tools_of_server(name, agents["named"]):
                    self._add(tool.name, tool, name)
            else:
                function = self._find(name, "tool")
                self._add(getattr(function, "__name__", name), function, name)
        for key, name in environments.items():
            if name.startswith((PREFIX, verifiers.PREFIX)):
                self._make[key] = self._agents(name, options, **agents)
            else:
                factory = self._find(name, "environment") if name else None
                if callable(factory):
                    _check_factory(name, factory)
                self._make[key] = partial(self._new, factory)
        return {key: self._spec_of(key, name) for key, name in environments.items()}

    def _add(self, name: str, tool: Callable[..., Any], source: str) -> None:
        """Add a tool, whose name must be its own."""
        if name in self._tools:
            raise _ambiguous(name, self._sources[name], source)
        self._tools[name], self._sources[name] = tool, source

    def _tools_of_server(self, name: str, named: Sequence[str]) -> list[ServerTool]:
        self._refuse_objects(name)
        self._server.declared = LOADING
        server = ToolServer(name, self._open.enter_context(scratch("home")), named)
        try:
            tools: list[ServerTool] = self._server.run(server.tools)
        except TooLateError:
            raise BrokenEnvironmentError(
                f"{name} did not list its tools in time; start it by hand to see whether it waits "
                "for something, or take it out of task.tools"
            ) from None
        return tools

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
        for tool in self._tools.keys() & tools_of(episodes.instance).keys():
            raise _ambiguous(tool, self._sources[tool], name)
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
            is_known = isinstance(self._episodes[name, slot], ToolEpisodes)
            for step, messages in repeat["past"]:
                known = {"recorded": messages} if is_known else {}
                if self.call("step", name, slot, {**step, **known})["messages"] != messages:
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
        self._refuse_objects(name)
        self._server.declared = LOADING
        if name.startswith(verifiers.PREFIX):
            taskset = verifiers.Taskset(verifiers.load(name, options))
            return partial(verifiers.TasksetEpisode, sampling, taskset)
        folder = self._open.enter_context(scratch("agents"))
        command = command_of(name, PREFIX, f"{PREFIX} python my_agent.py")
        return partial(Program, sampling, folder, command, by_status=by_status, named=named)

    def _refuse_objects(self, name: str) -> None:
        """Refuse a program in a process without limits."""
        if self._server.objects:
            raise BrokenEnvironmentError(
                f"{name} cannot run beside tools or environments of this process; give those as "
                "files"
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


def _ambiguous(name: str, first: str, second: str) -> BrokenEnvironmentError:
    return BrokenEnvironmentError(
        f"the tool {name} is both of {first} and of {second}, and a call could mean either; rename "
        "one, or leave one out"
    )


def _schema(name: str, tool: Callable[..., Any]) -> Any:
    if isinstance(tool, ServerTool):
        return tool.schema
    from transformers.utils.chat_template_utils import get_json_schema

    try:
        return get_json_schema(tool)
    except Exception as error:  # Users' code may raise anything.
        raise BrokenEnvironmentError(
            f"tool {name} cannot be described to the model ({error}); "
            f"{NO_SEED if name == 'step' else ''}give it a docstring with a line for each "
            "parameter under `Args:`, and types"
        ) from error
