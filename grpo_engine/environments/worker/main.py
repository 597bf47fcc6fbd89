"""Main module of an environment process: runs the calls of its episodes side by side.

Each call runs in a thread, since users' code waits a lot; awaitables share one event loop. A call
that takes longer than its limit is reported with its line, and the engine ends this process, for a
thread cannot be stopped.
"""

import asyncio
import copy
import functools
import inspect
import os
import select
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from grpo_engine import names
from grpo_engine.environments.worker import verifiers
from grpo_engine.environments.worker.adapters import (
    ProtocolEpisodes,
    ToolEpisodes,
    UnusableError,
    has_own_protocol,
    tools_of,
)
from grpo_engine.errors import BrokenEnvironmentError, EngineError
from grpo_engine.rewards.worker.frames import read_frame, write_frame
from grpo_engine.rewards.worker.main import HERE, connect, described, leave

FORMS = "a package's name, file.py:name or module:name"
THREADS = 64  # calls at a time
NEEDS_MAIN = "signal only works in main thread"  # Python's words
TICK = 0.1  # seconds between looks at the time limits


class TooLateError(Exception):
    """An awaitable took longer than the limit."""


@dataclass(slots=True)
class _Call:
    """A call that runs, and in which thread."""

    frame: Mapping[str, Any]
    begun: float = field(default_factory=time.monotonic)
    thread: int = 0


class MainThread:
    """Makes the calls that handle signals, such as those with a time limit of their own."""

    def __init__(self) -> None:
        self.woken, self._wake = os.pipe()
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()

    def make(self, call: Callable[[], Any]) -> Any:
        """Have a call of another thread made, and wait for its value."""
        made: Future[Any] = Future()
        self._calls.put((call, made))
        os.write(self._wake, b".")
        return made.result()

    def make_next(self) -> None:
        """Make the call that has waited longest."""
        os.read(self.woken, 1)
        call, made = self._calls.get()
        try:
            made.set_result(call())
        except BaseException as error:
            made.set_exception(error)


class Server:
    """The environments by name, their episodes by slot, and the calls that run."""

    def __init__(self, reply: int, main: "MainThread | None" = None) -> None:
        self.reply, self.main = reply, main
        self.sending = threading.Lock()
        self.make: dict[str, Callable[[], Any]] = {}
        self.files: dict[str, str] = {}
        self.episodes: dict[tuple[str, int], Any] = {}
        self.calls: dict[int, _Call] = {}
        self.pool = ThreadPoolExecutor(THREADS, "environment")
        self.loop = asyncio.new_event_loop()
        self.awaiting = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.awaiting.start()

    def close(self) -> None:
        """End the threads that have no call, and cancel what is awaited."""

        async def cancel() -> None:
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            self.loop.call_soon(self.loop.stop)

        self.pool.shutdown(wait=False, cancel_futures=True)
        asyncio.run_coroutine_threadsafe(cancel(), self.loop)
        self.awaiting.join(1.0)
        if not self.awaiting.is_alive():
            self.loop.close()

    def find(self, name: str, what: str) -> tuple[Any, str]:
        """The object that a setting names, and its source file."""
        names.refuse_given(name, what)
        wanted = names.Wanted(f"{what} {name}", BrokenEnvironmentError, FORMS)
        return names.brought("environments", name, wanted) or names.find(name, wanted)

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
        what = ""
        try:
            tools: dict[str, Callable[..., Any]] = {}
            for name in frame["tools"]:
                what = f"tool {name}"
                tool, self.files[name] = self.find(name, "tool")
                tools[getattr(tool, "__name__", name)] = tool
            found = {}
            for key, name in frame["environments"].items():
                what = f"environment {name}"
                if name.startswith(verifiers.PREFIX):
                    found[key] = self.load_package(key, name, tools, frame["options"])
                    continue
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
        factory, file = self.find(name, "environment")
        self.files[key] = file
        if not callable(factory):  # an instance: each rollout gets a copy
            factory = functools.partial(copy.deepcopy, factory)

        def make() -> Any:
            instance = factory()
            if has_own_protocol(instance):
                return ProtocolEpisodes(instance)
            return ToolEpisodes({**tools, **tools_of(instance)}, instance)

        self.make[key] = make
        if not describes:
            return {}
        made = make()
        title = type(made.instance).__name__
        if isinstance(made, ProtocolEpisodes):
            if tools:
                raise BrokenEnvironmentError(
                    f"environment {name} replies to whole answers, so task.tools cannot be called "
                    "beside it; make them methods of a class without `step`"
                )
            return {"name": title, "rewards": True, "by_turn": True, "file": file, "tools": []}
        if not made.tools:
            raise BrokenEnvironmentError(
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

    def load_package(
        self, key: str, name: str, tools: Mapping[str, Callable[..., Any]],
        options: Mapping[str, Any],
    ) -> dict[str, Any]:  # fmt: skip
        """Load the environment of a verifiers package, once for all episodes."""
        if tools:
            raise BrokenEnvironmentError(f"environment {name} has its own tools; empty task.tools")
        environment = verifiers.load(name, options)
        self.make[key] = lambda: verifiers.Episodes(environment)
        return {
            "name": name.removeprefix(verifiers.PREFIX), "rewards": True, "by_turn": False,
            "file": "", "tools": verifiers.tools(environment),
        }  # fmt: skip

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

        def wait(function: Callable[..., Any], /, *args: Any, **given: Any) -> Any:
            try:
                value = function(*args, **given)
            except ValueError as error:
                if self.main is None or not str(error).startswith(NEEDS_MAIN):
                    raise
                value = self.main.make(functools.partial(function, *args, **given))
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
    from transformers.utils.chat_template_utils import get_json_schema

    found = []
    for name, tool in tools.items():
        try:
            found.append(get_json_schema(tool))
        except Exception as error:  # users' code may raise anything
            raise BrokenEnvironmentError(
                f"tool {name} cannot be described to the model ({error}); give it a docstring with "
                "a line for each parameter under `Args:`, and types"
            ) from error
    return found


def main() -> None:
    """Serve until the request pipe closes."""
    request, reply = connect()
    main = MainThread()
    server = Server(os.dup(reply), main)
    while True:
        ready = select.select([request, main.woken], [], [], TICK)[0]
        server.report_late()
        if main.woken in ready:
            main.make_next()
        if request not in ready:
            continue
        frame = read_frame(request)
        if frame is None:
            break
        server.accept(frame)
    leave()
