"""The program of a sandbox's process: makes calls of one service and sends what they return.

A service is a class; its public methods are what can be called. Calls are made in the main thread,
one after the other, or side by side in threads of their own, as the client says. A thread cannot be
stopped: a call that takes too long there is reported with its line, and the client ends the
process. Standard output belongs to users' code; frames use separate pipes.
"""

import asyncio
import atexit
import faulthandler
import inspect
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from math import inf
from pathlib import Path
from pkgutil import resolve_name
from queue import Empty, SimpleQueue
from typing import Any

from grpo_engine.errors import EngineError
from grpo_engine.sandbox.descendants import MARK, adopt_orphans, end_all
from grpo_engine.sandbox.frames import unpack, write_frame
from grpo_engine.sandbox.report import (
    MEMORY_GB,
    Failure,
    ProcessLostError,
    TooLateError,
    describe,
    line_of,
    timeout,
)

TICK = 0.1  # seconds between checks of time limits
NEEDS_MAIN = "signal only works in main thread"  # the beginning of Python's message


Calls = SimpleQueue[Callable[[], Any] | None]  # None ends the thread that makes them


def call_in(calls: Calls, call: Callable[[], Any]) -> Any:
    """Make a call in the thread that makes those of the queue; return its value."""
    result: Future[Any] = Future()

    def make() -> None:
        try:
            result.set_result(call())
        except BaseException as error:
            result.set_exception(error)

    calls.put(make)
    return result.result()


async def _limited(awaitable: Awaitable[Any], limit: float) -> Any:
    try:
        async with asyncio.timeout(limit) as timeout:
            return await awaitable
    except TimeoutError:
        if timeout.expired():
            raise TooLateError from None
        raise
    except SystemExit as error:  # SystemExit would end the loop.
        raise RuntimeError(f"called sys.exit({error.code!r})") from None


class EventLoop:
    """Runs awaitables in a thread of its own, so that connections outlive a call."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self._runner:  # The exit cancels what is awaited.
            self._loop.run_forever()

    def wait(self, awaitable: Awaitable[Any], limit: float) -> Any:
        """Wait for an awaitable's value, or raise TooLateError after `limit` seconds."""
        return asyncio.run_coroutine_threadsafe(_limited(awaitable, limit), self._loop).result()

    def close(self) -> None:
        """End the thread, unless it hangs."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(1.0)


@dataclass(slots=True)
class _Call:
    """A call that is being made, in which thread, and until when it has to report."""

    frame: Mapping[str, Any]
    thread: int
    begun: float
    deadline: float


class Server:
    """Makes the calls of a service; `objects` are those that only this process has, by name."""

    def __init__(
        self,
        service: str,
        send: Callable[[Any], None],
        objects: Mapping[str, Any] | None = None,
        main: Calls | None = None,
    ) -> None:
        self.objects = objects or {}
        self.declared = 0.0
        self._main, self._loop = main, EventLoop()
        self._send, self._sending = send, threading.Lock()
        self._calls: dict[int, _Call] = {}
        self._current = threading.local()
        self._service = resolve_name(service)(self)

    def allow_memory(self, user_object: Any) -> None:
        """Let the process hold what a function or a class declares that it may need."""
        gigabytes = getattr(user_object, MEMORY_GB, 0)
        if not isinstance(gigabytes, int | float) or not gigabytes >= 0:
            raise EngineError(
                f"{MEMORY_GB} of {user_object!r} must be a number of gigabytes, got {gigabytes!r}"
            )
        self.declared = max(self.declared, gigabytes * 2.0**30)

    def run(self, function: Callable[..., Any], /, *args: Any, **keywords: Any) -> Any:
        """Call users' code, and wait for the value if that is awaitable."""
        try:
            value = function(*args, **keywords)
        except ValueError as error:
            if self._main is None or not str(error).startswith(NEEDS_MAIN):
                raise
            value = call_in(self._main, partial(function, *args, **keywords))
        if not inspect.isawaitable(value):
            return value
        call: _Call = self._current.call
        deadline, call.deadline = call.deadline, inf  # The event loop limits the time.
        try:
            return self._loop.wait(value, deadline - time.monotonic())
        finally:
            call.deadline = deadline

    def accept(self, frame: Mapping[str, Any]) -> None:
        """Make a call, or begin it in a thread."""
        limit_memory(frame["memory"])
        if frame["in_thread"]:
            threading.Thread(target=self._make, args=(frame,), daemon=True).start()
        else:
            self._make(frame)

    def _make(self, frame: Mapping[str, Any]) -> None:
        now = time.monotonic()
        call = _Call(frame, threading.get_ident(), now, now + frame["limit"] * frame["factor"])
        self._calls[frame["id"]] = self._current.call = call
        try:
            reply = {"value": getattr(self._service, frame["method"])(**frame["arguments"])}
        except KeyboardInterrupt:
            raise
        except TooLateError:
            reply = {"failure": asdict(timeout(frame["limit"]))}
        except ProcessLostError as lost:
            failure = timeout(frame["limit"])
            if text := str(lost):
                failure = Failure(cause="crash", message=text)
            reply = {"failure": asdict(failure), "is_lost": True}
        except BaseException as error:
            reply = {"failure": asdict(describe(error))}
        self._reply(call, reply)

    def _reply(self, call: _Call, reply: Mapping[str, Any]) -> None:
        """Send the reply, unless the call has been reported as late."""
        number, seconds = call.frame["id"], time.monotonic() - call.begun
        if self._calls.pop(number, None) is not None:
            with self._sending:
                frame = {"id": number, "seconds": seconds, "declared": self.declared}
                self._send({**frame, **reply})

    def report_late(self) -> None:
        """Report the calls that hang, each with its line."""
        for call in list(self._calls.values()):
            if call.deadline < time.monotonic():
                failure = timeout(call.frame["limit"], line_of(call.thread))
                self._reply(call, {"failure": asdict(failure), "hangs": True})

    def close(self) -> None:
        self._loop.close()
        if hasattr(self._service, "close"):
            self._service.close()


def limit_memory(limit: float) -> None:
    """Make allocations beyond a limit raise MemoryError, where the system can."""
    if sys.platform == "linux" and limit < inf:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        soft = hard if 0 <= hard < limit else int(limit)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def end_with_the_engine(lifeline: int) -> None:
    """Fork a process that waits for the engine's end, then ends this one and all it started.

    It can act while C code in this process holds the interpreter, and has a session of its own.
    """
    child = os.getpid()
    if os.fork():
        return
    os.setsid()
    os.closerange(0, lifeline)
    os.closerange(lifeline + 1, 256)  # The interpreter has just started.
    os.read(lifeline, 1)
    end_all(os.environ.get(MARK, ""), child)
    os._exit(0)


def main() -> None:
    """Serve until the request pipe closes, then end this process and all that it started."""
    *descriptors, service = sys.argv[1:]
    request, reply, lifeline, trace = map(int, descriptors)
    for fd in (request, reply, lifeline, trace):
        os.set_inheritable(fd, False)
    sys.argv[1:] = []
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    file = os.fdopen(trace, "w")
    faulthandler.enable(file, all_threads=False)
    faulthandler.register(signal.SIGUSR1, file, all_threads=True, chain=False)
    adopt_orphans()
    end_with_the_engine(lifeline)
    sys.path.append(str(Path.cwd()))
    _serve(request, reply, service)
    atexit._run_exitfuncs()  # A normal exit would wait for threads as well.
    sys.stdout.flush()
    end_all(os.environ.get(MARK, ""), os.getpid())
    os._exit(0)


def _serve(request: int, reply: int, service: str) -> None:
    """Make the calls that wait for the main thread: requests, and what handles signals."""
    calls: Calls = SimpleQueue()
    server = Server(service, partial(write_frame, reply), main=calls)

    def read() -> None:
        with os.fdopen(request, "rb") as lines:
            for line in lines:
                calls.put(partial(server.accept, unpack(line)))
        calls.put(None)

    threading.Thread(target=read, daemon=True).start()
    while True:
        with suppress(Empty):
            if (call := calls.get(timeout=TICK)) is None:
                break
            call()
        server.report_late()
    server.close()
