"""Environments of packages for verifiers 0.1: `load_environment`, `MultiTurnEnv`, `Rubric`.

The package's own loop runs the episode. It asks a client for the model's answers, and the client
here waits for those of our sampler.
"""

import asyncio
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from grpo_engine.environments.adapters import (
    UnusableError,
    attributes,
    checked_messages,
    number,
)
from grpo_engine.environments.calls import call_error, find_calls
from grpo_engine.errors import BrokenEnvironmentError
from grpo_engine.sandbox.report import is_json, plain

PREFIX = "verifiers:"


def load(name: str, options: Mapping[str, Any]) -> Any:
    """The environment that a package's `load_environment(**options)` makes."""
    try:
        import verifiers
    except ImportError as error:
        raise BrokenEnvironmentError(
            f"{name}: {sys.executable} has no package verifiers ({error}); install the environment "
            "with verifiers 0.1 for a Python and name that one in task.interpreter"
        ) from error
    if not hasattr(verifiers, "MultiTurnEnv"):
        raise BrokenEnvironmentError(
            f"{name}: verifiers {getattr(verifiers, '__version__', 'of another line')} has no "
            "environments that reply to answers: its harnesses are programs that ask a server for "
            "them. Install verifiers 0.1.14 beside the environment"
        )
    from verifiers.clients import Client

    Client.register(Episodes)
    environment = verifiers.load_environment(name.removeprefix(PREFIX), **options)
    if environment.requires_group_rollouts:
        raise BrokenEnvironmentError(
            f"{name}: its rubric scores the answers to a prompt together; give it reward functions "
            "of one answer"
        )
    return environment


class Rows:
    """The data of an environment, for the task of the same name."""

    def __init__(self, _server: object) -> None:
        """Needs nothing of the process."""

    def read(self, name: str, options: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
        """Its rows by split."""
        environment = load(name, options)
        environment.build_dataset()
        environment.build_eval_dataset()
        splits = {"train": environment.dataset, "eval": environment.eval_dataset}
        return {
            split: [{key: plain(value) for key, value in row.items()} for row in data]
            for split, data in splits.items()
            if data is not None
        }


def tools(environment: Any) -> list[dict[str, Any]]:
    """The schemas of its tools, as chat templates take them."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name, "description": tool.description, "parameters": tool.parameters,
            },
        }
        for tool in environment.tool_defs or ()
    ]  # fmt: skip


@dataclass(slots=True, eq=False)
class Episodes:
    """Episodes of one rollout after the other; also the client that the package's loop asks."""

    environment: Any
    prompt: list[Any] = field(init=False)  # of the answer that is awaited
    state: Any = None  # of the package, once the episode has ended
    loop: asyncio.Task[Any] | None = None
    prompts: asyncio.Queue[list[Any] | None] = field(init=False)  # None: the end
    answers: asyncio.Queue[str | None] = field(init=False)

    async def reset(self, row: Mapping[str, Any], seed: int, index: int) -> dict[str, Any]:  # noqa: ARG002 - it takes no seed
        """Begin an episode; return the messages that the environment adds to the row's."""
        if self.loop is not None:
            self.loop.cancel()
        self.prompts, self.answers, self.state = asyncio.Queue(), asyncio.Queue(), None
        self.prompt = [_typed(message) for message in row["prompt"]]
        rollout = self.environment.rollout({**row, "prompt": list(self.prompt)}, self, "policy", {})
        self.loop = asyncio.create_task(rollout)
        prompts = self.prompts  # a later episode has another queue
        self.loop.add_done_callback(lambda _: prompts.put_nowait(None))
        if (added := await self._next("its prompt")) is None:
            raise UnusableError("the episode ended before the first answer")
        return {"text": "", "messages": checked_messages(added, "setup_state")}

    async def step(self, answer: str) -> dict[str, Any]:
        """Give the answer to the package's loop; return what it asks or how it ended."""
        self.answers.put_nowait(answer)
        added = await self._next("earlier messages")
        if added is None:
            return {"messages": [], "done": True, "info": await self._score()}
        messages = checked_messages(added[1:], "env_response")  # after the answer itself
        tools_by_name = getattr(self.environment, "tool_map", {})
        calls = [
            call.with_result(message["content"], failed=bool(call_error(call, tools_by_name)))
            for call, message in zip(find_calls(answer), messages, strict=False)
            if message["role"] == "tool"
        ]
        if not messages:
            raise UnusableError("env_response returned no messages and the episode is not over")
        return {"messages": messages, "done": False, "calls": calls}

    async def _next(self, what: str) -> list[dict[str, Any]] | None:
        """The messages after the last prompt, None once the loop has ended."""
        prompt = await self.prompts.get()
        if prompt is None:
            assert self.loop is not None
            self.state = self.loop.result()
            if (error := self.state.get("error")) is not None:
                raise UnusableError(f"the episode ended with {type(error).__name__}: {error}")
            return None
        before, self.prompt = self.prompt, prompt
        if prompt[: len(before)] != before:
            raise UnusableError(f"the environment changes {what}; a dialogue can only grow")
        return [_plain(message) for message in prompt[len(before) :]]

    async def finish(self) -> dict[str, Any]:
        """The rubric's reward, and what the episode's state has that is JSON."""
        if self.state is None:  # the last answer did not end it
            assert self.loop is not None
            self.answers.put_nowait(None)
            self.state = await self.loop
            await self._score()
        values = {
            key: value for key, value in self.state.items()
            if key not in ("input", "task")  # the row again
            and value is not None and is_json(value)
        }  # fmt: skip
        reward = number(self.state["reward"], "the rubric's reward")
        return {"reward": reward, "state": attributes(SimpleNamespace(**values))}

    async def _score(self) -> dict[str, Any]:
        """Score the episode; return the value of each function of the rubric."""
        await self.environment.rubric.score_rollout(self.state)
        await self.environment.rubric.cleanup(self.state)
        return {str(name): plain(value) for name, value in self.state["metrics"].items()}

    async def get_response(self, prompt: list[Any], model: str, *_: Any, **__: Any) -> Any:
        """The next answer of our sampler, for the package's loop."""
        from verifiers.errors import OverlongPromptError
        from verifiers.types import Response, ResponseMessage, ToolCall

        self.prompts.put_nowait(list(prompt))
        answer = await self.answers.get()
        if answer is None:
            self.answers.put_nowait(None)  # for a loop that asks again
            raise OverlongPromptError
        calls = [
            ToolCall(
                id=f"call-{len(prompt)}-{index}", name=call.name,
                arguments=call.error or json.dumps(dict(call.arguments)),
            )
            for index, call in enumerate(find_calls(answer))
        ] if getattr(self.environment, "tool_defs", None) else []  # fmt: skip
        message = ResponseMessage(
            content=answer, tool_calls=calls or None, is_truncated=False,
            finish_reason="tool_calls" if calls else "stop",
        )  # fmt: skip
        return Response(id="", created=0, model=model, message=message)

    async def close(self) -> None:
        """Nothing to close."""


def _typed(message: Mapping[str, Any]) -> Any:
    from verifiers.utils.message_utils import from_raw_message

    return from_raw_message({key: value for key, value in message.items() if value is not None})


def _plain(message: Any) -> dict[str, Any]:
    """A message of the package with a text as its content."""
    content = message.content or ""
    if not isinstance(content, str):
        parts = [part if isinstance(part, dict) else part.model_dump() for part in content]
        if other := next((part for part in parts if part.get("type") != "text"), None):
            raise UnusableError(f"a message has {other.get('type')!r}; only text can be used")
        content = "".join(part["text"] for part in parts)
    return {"role": message.role, "content": content}
