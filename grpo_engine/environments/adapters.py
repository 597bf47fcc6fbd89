"""One interface over the ways to write an environment: tools, TRL's classes, our protocol."""

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from grpo_engine.environments.calls import ParsedCall, find_calls
from grpo_engine.environments.protocol import Reply
from grpo_engine.errors import EngineError
from grpo_engine.frozen import frozen
from grpo_engine.sandbox.report import ProcessLostError, TooLateError, plain

MAX_LENGTH = 1 << 20  # characters of a reply
LARGEST = 1e30  # absolute reward
MAX_STATE = 100_000  # characters of an environment's attribute as JSON

Run = Callable[..., Any]  # a call of users' code, with the value of an awaitable


class UnusableError(EngineError):
    """An environment returned something that cannot be used."""


@frozen
class ServerTool:
    """A tool of an MCP server, with its schema, and what calls it by its arguments."""

    name: str
    schema: Mapping[str, Any]
    call: Callable[[Mapping[str, Any]], Awaitable[str]]

    def __call__(self, /, **arguments: Any) -> Awaitable[str]:
        return self.call(arguments)


@dataclass(slots=True)
class ToolEpisodes:
    """Tools, and the object that they belong to, if it is an instance of TRL's kind of class."""

    run: Run
    tools: Mapping[str, Callable[..., Any]]
    instance: Any = None

    def reset(self, row: Mapping[str, Any], seed: int, index: int) -> dict[str, Any]:  # noqa: ARG002 - TRL's classes take no seed
        """Begin an episode; return a text for the prompt's last message, and further messages."""
        reset = getattr(self.instance, "reset", None)
        text = "" if reset is None else self.run(reset, **row) or ""
        if not isinstance(text, str):
            raise UnusableError(f"it returned {preview(text)}, not a text or None")
        return {"text": text}

    def step(self, completion: str, recorded: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
        """Make the calls of a completion; one without calls is the last.

        `recorded` are the results of earlier, where an episode is repeated. A server is not asked
        again: it outlives episodes, and may have acted on the call.
        """
        calls, messages = [], []
        for index, call in enumerate(find_calls(completion)):
            if recorded and isinstance(self.tools.get(call.name), ServerTool) and not call.error:
                result, failed = recorded[index]["content"], False
            else:
                result, failed = self._result_of(call)
            calls.append(
                {
                    "name": call.name,
                    "arguments": call.arguments,
                    "result": result,
                    "failed": failed,
                }
            )
            messages.append({"role": "tool", "name": call.name, "content": result})
        return {"messages": messages, "done": not calls, "calls": calls}

    def _result_of(self, call: ParsedCall) -> tuple[str, bool]:
        """What a call returned, or in TRL's form the error that it raised; and whether it did."""
        error = call.error
        if not error and call.name not in self.tools:
            error = f"there is no tool {call.name!r}; there is {', '.join(self.tools)}"
        if not error:
            try:
                return str(self.run(self.tools[call.name], **call.arguments)), False
            except (MemoryError, TooLateError, ProcessLostError, UnusableError):
                raise
            except Exception as raised:
                error = str(raised)
        return str({"error": error}), True

    def finish(self) -> dict[str, Any]:
        get_reward = getattr(self.instance, "get_reward", None)
        reward = None if get_reward is None else self.run(get_reward)
        return {"reward": number(reward), "state": attributes(self.instance)}


@dataclass(slots=True)
class ProtocolEpisodes:
    """An instance of our protocol."""

    run: Run
    instance: Any

    def reset(self, row: Mapping[str, Any], seed: int, index: int) -> dict[str, Any]:
        """Begin an episode with further messages of the prompt."""
        keywords = {"index": index} if "index" in parameters(self.instance.reset) else {}
        messages = self.run(self.instance.reset, row, seed, **keywords)
        return {"messages": checked_messages(messages)}

    def step(self, completion: str) -> dict[str, Any]:
        """Reply to a completion."""
        reply = self.run(self.instance.step, completion)
        if not isinstance(reply, Reply):
            raise UnusableError(f"it returned {preview(reply)}, not a Reply; `return Reply([...])`")
        messages = checked_messages(reply.messages)
        if not messages and not reply.done:
            raise UnusableError("it returned a Reply without messages that is not done")
        info = {str(name): plain(value) for name, value in reply.info.items()}
        return {
            "messages": messages,
            "done": bool(reply.done),
            "info": info,
            "reward": number(reply.reward),
        }

    def finish(self) -> dict[str, Any]:
        return {"state": attributes(self.instance)}


def follows_protocol(instance: Any) -> bool:
    """Whether an object follows our protocol: `step`, and `reset` with a seed."""
    reset, step = getattr(instance, "reset", None), getattr(instance, "step", None)
    return callable(reset) and callable(step) and "seed" in parameters(reset)


def tools_of(instance: Any) -> dict[str, Callable[..., Any]]:
    """The public methods of an instance of TRL's kind of class, without those with a meaning."""
    return {
        name: method
        for name, method in inspect.getmembers(instance, inspect.ismethod)
        if not name.startswith("_") and name not in ("reset", "get_reward")
    }


def parameters(function: Any) -> Sequence[str]:
    """The names of a callable's parameters; empty if they are unknown."""
    with suppress(TypeError, ValueError):
        return list(inspect.signature(function).parameters)
    return []


def attributes(instance: Any) -> dict[str, Any]:
    """The public attributes as JSON values; of a large one the beginning of its text."""
    values = getattr(instance, "__dict__", {}).copy().items()
    public = {name: plain(value) for name, value in values if not name.startswith("_")}
    return {
        name: value if len(json.dumps(value)) <= MAX_STATE else str(value)[:1000]
        for name, value in public.items()
    }


def checked_messages(messages: Any) -> list[dict[str, Any]]:
    """The messages as JSON values; an error names the first that is none."""
    result = []
    for message in messages or ():
        match message:
            case {"role": str(), "content": str(content)}:
                check_length(len(content))
                result.append({str(name): plain(value) for name, value in message.items()})
            case _:
                raise UnusableError(
                    f"it returned {preview(message)}; a message has a role and a text as content"
                )
    return result


def check_length(length: int) -> None:
    if length > MAX_LENGTH:
        raise UnusableError(f"its reply has {length} characters; at most {MAX_LENGTH} are taken")


def number(value: Any) -> float | None:
    """A finite reward, or None."""
    if value is None:
        return None
    with suppress(TypeError, ValueError, OverflowError):
        if abs(result := float(value)) < LARGEST:
            return result
    raise UnusableError(f"the reward is {preview(value)}, not a number that can be added up")


def preview(value: Any) -> str:
    """The type of a value and its beginning, for errors."""
    return f"{type(value).__name__} {str(value)[:60]!r}"
