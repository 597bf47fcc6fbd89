"""Main module of an environment process: runs the calls of its episodes side by side.

Each call runs in a thread, since users' code waits a lot; awaitables share one event loop. A call
that takes longer than its limit is reported with its line, and the engine ends this process, for a
thread cannot be stopped.
"""

import asyncio
import inspect
import os
import select
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from grpo_engine import names
from grpo_engine.environments.worker.adapters import (
    ProtocolEpisodes,
    ToolEpisodes,
    UnusableError,
    has_own_protocol,
    tools_of,
)
from grpo_engine.errors import EngineError, RewardError
from grpo_engine.rewards.worker.frames import read_frame, write_frame
from grpo_engine.rewards.worker.main import HERE, connect, described, leave

FORMS = "file.py:name or module:name"
THREADS = 64  # calls at a time
TICK = 0.1  # seconds between looks at the time limits


class TooLateError(Exception):
    """An awaitable took longer than the limit."""


@dataclass(slots=True)
class _Call:
    """A call that runs, and in which thread."""

    frame: Mapping[str, Any]
    begun: float = field(default_factory=time.monotonic)
    thread: int = 0


class Server:
    """The environments by name, their episodes by slot, and the calls that run."""

    def __init__(self, reply: int) -> None:
        self.reply = reply
        self.sending = threading.Lock()
        self.make: dict[str, Callable[[], Any]] = {}
        self.files: dict[str, str] = {}
        self.episodes: dict[tuple[str, int], Any] = {}
        self.calls: dict[int, _Call] = {}
        self.pool = ThreadPoolExecutor(THREADS)
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def send(self, frame: Mapping[str, Any]) -> None:
        """Send a reply; calls end in any order."""
        with self.sending:
            write_frame(self.reply, frame)

    def accept(self, frame: Mapping[str, Any]) -> None:
        """Load the environments, or start a call."""
        if frame["do"] == "load":
            self.send({"id": frame["id"], **self.load(frame)})
            return
        self.calls[frame["id"]] = _Call(frame)
        self.pool.submit(self.run, frame["id"])

    def load(self, frame: Mapping[str, Any]) -> dict[str, Any]:
        """Load tools and environments; describe them."""
        what = ""
        try:
            tools: dict[str, Callable[..., Any]] = {}
            for name in frame["tools"]:
                what = f"tool {name}"
                tool, self.files[name] = names.find(name, names.Wanted(what, RewardError, FORMS))
                tools[getattr(tool, "__name__", name)] = tool
            found = {}
            for key, name in frame["environments"].items():
                what = f"environment {name}"
                found[key] = self.load_one(key, name, tools, describes=frame["describes"])
        except EngineError as error:
            return {"ok": False, "message": str(error), "where": "", "traceback": ""}
        except BaseException as error:
            told = described(error, "")
            return {**told, "message": f"{what} cannot be loaded: {told['message']}"}
        return {"ok": True, "environments": found}

    def load_one(
        self, key: str, name: str, tools: Mapping[str, Callable[..., Any]], *, describes: bool
    ) -> dict[str, Any]:
        """Load one environment; an empty name has the tools alone."""
        if not name:
            self.make[key] = lambda: ToolEpisodes(tools)
            return {
                "name": "tools", "rewards": False, "by_turn": False, "file": "",
                "tools": schemas(tools) if describes else [],
            }  # fmt: skip
        factory, file = names.find(name, names.Wanted(f"environment {name}", RewardError, FORMS))
        self.files[key] = file
        if not callable(factory):
            raise RewardError(f"environment {name}: {type(factory).__name__} is not callable")

        def make() -> Any:
            instance = factory()
            if has_own_protocol(instance):
                return ProtocolEpisodes(instance)
            return ToolEpisodes({**tools, **tools_of(instance)}, instance)

        self.make[key] = make
        if not describes:
            return {}
        made = make()
        title = str(getattr(factory, "__name__", name))
        if isinstance(made, ProtocolEpisodes):
            if tools:
                raise RewardError(
                    f"environment {name} replies to whole answers, so task.tools cannot be called "
                    "beside it; make them methods of a class without `step`"
                )
            return {"name": title, "rewards": True, "by_turn": True, "file": file, "tools": []}
        if not made.tools:
            raise RewardError(
                f"environment {name} has neither `reset(row, seed)` and `step(answer)` nor public "
                "methods that could be tools"
            )
        has_reward = callable(getattr(made.instance, "get_reward", None))
        offered = schemas(made.tools)
        return {
            "name": title,
            "rewards": has_reward,
            "by_turn": False,
            "file": file,
            "tools": offered,
        }

    def run(self, number: int) -> None:
        """Make one call and send its result, unless it was reported as late."""
        call = self.calls[number]
        frame, call.begun, call.thread = call.frame, time.monotonic(), threading.get_ident()
        limit = frame["limit"]
        try:
            result = {"ok": True, **self.made(frame, limit)}
        except BaseException as error:
            result = self.failure(error, frame, limit)
        result["ms"] = 1000 * (time.monotonic() - call.begun)
        if self.calls.pop(number, None) is not None:
            self.send({"id": number, **result})

    def made(self, frame: Mapping[str, Any], limit: float) -> dict[str, Any]:
        """Carry out a request; after a loss of the process the episode is repeated first."""

        def wait(value: Any) -> Any:
            if not inspect.isawaitable(value):
                return value

            async def limited() -> Any:
                return await asyncio.wait_for(value, limit)

            try:
                return asyncio.run_coroutine_threadsafe(limited(), self.loop).result()
            except TimeoutError:
                raise TooLateError from None

        key = (frame["name"], frame["slot"])
        if key not in self.episodes:
            self.episodes[key] = self.make[frame["name"]]()
        episode = self.episodes[key]
        past = frame.get("past", ())
        if past is not None and frame["do"] != "reset":
            begun = frame["begin"]
            if begun is not None:
                episode.reset(begun["row"], begun["seed"], begun["index"], wait)
                for answer, messages in past:
                    if episode.step(answer, wait)["messages"] != messages:
                        raise UnusableError(
                            "its process was lost to another episode, and it does not repeat its "
                            "replies: the row and the seed must decide them"
                        )
        match frame["do"]:
            case "reset":
                found = episode.reset(frame["row"], frame["seed"], frame["index"], wait)
            case "step":
                found = episode.step(frame["answer"], wait)
            case _:
                found = episode.finish(wait)
        return dict(found)

    def failure(
        self, error: BaseException, frame: Mapping[str, Any], limit: float
    ) -> dict[str, Any]:
        """The reply for a call that raised."""
        if isinstance(error, TooLateError):
            return {"ok": False, "kind": "timeout", "where": "", "message": late(limit)}
        if isinstance(error, UnusableError):
            return {"ok": False, "kind": "type", "where": "", "message": str(error)}
        told = described(error, self.files.get(frame["name"], ""))
        return {**told, "kind": "exception"}

    def report_late(self) -> None:
        """Report the calls that hang, each with its line."""
        for number, call in list(self.calls.items()):
            limit = call.frame["limit"] * (1 + len(call.frame.get("past") or ()))
            if not call.thread or time.monotonic() - call.begun <= limit:
                continue
            if self.calls.pop(number, None) is not None:
                self.send({
                    "id": number, "ok": False, "kind": "timeout", "hangs": True, "ms": 1000 * limit,
                    "message": late(call.frame["limit"]),
                    "where": line_of(call.thread),
                })  # fmt: skip


def late(limit: float) -> str:
    """What is said of a call that took too long."""
    return f"took longer than task.environment_time_limit {limit:g} s"


def line_of(thread: int) -> str:
    """The innermost line of a thread in a user's file, as `file:line`."""
    frame = sys._current_frames().get(thread)
    for one in reversed(traceback.extract_stack(frame) if frame else []):
        if "/lib/python" not in one.filename and not one.filename.startswith(HERE):
            return f"{one.filename}:{one.lineno}"
    return ""


def schemas(tools: Mapping[str, Callable[..., Any]]) -> list[dict[str, Any]]:
    """The tools' JSON schemas, from signatures and docstrings."""
    from transformers.utils.chat_template_utils import get_json_schema

    found = []
    for name, tool in tools.items():
        try:
            found.append(get_json_schema(tool))
        except Exception as error:  # users' code may raise anything
            raise RewardError(
                f"tool {name} cannot be described to the model ({error}); give it a docstring with "
                "a line for each parameter under `Args:`, and types"
            ) from error
    return found


def main() -> None:
    """Serve until the request pipe closes."""
    request, reply = connect()
    server = Server(os.dup(reply))
    while True:
        if not select.select([request], [], [], TICK)[0]:
            server.report_late()
            continue
        frame = read_frame(request)
        if frame is None:
            break
        server.report_late()
        server.accept(frame)
    leave()
