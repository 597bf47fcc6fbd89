"""Calls of users' code in the sandbox's processes: time limits, memory limit, restart.

A call that takes too long, needs too much memory or ends its process fails, and the next one gets a
new process. If several calls run in a process that is lost, they are made again one at a time, to
find the one at fault. A hang in one process never ends the calls of another.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any, Final, Self

from grpo_engine.control import StopNow
from grpo_engine.platform.scratch import scratch
from grpo_engine.sandbox import variables
from grpo_engine.sandbox.local import Local
from grpo_engine.sandbox.process import BrokenProcessError, Process
from grpo_engine.sandbox.report import Failure, timeout

SLACK = 2.0  # seconds after its limit in which a call may still report itself
TICK = 0.05
GRACE = 1.0  # seconds in which a process may exit by itself
# Libraries in the process get one thread each, to leave the cores to the engine.
ONE_THREAD = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "RAYON_NUM_THREADS",
)
MAX_THREADS = 64  # calls that a process makes side by side
MEMORY_TICK = 0.1  # seconds between measurements of memory
MEMORY: Final = 4 << 30  # bytes, unless the user's code declares that it needs more
# Loading may need more, up to half of the machine, which trains beside it.
LOADING: Final = max(MEMORY, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)


@dataclass(slots=True, eq=False)
class ServiceCall:
    """A method of the service, its arguments and its limit in seconds; then what it returned.

    Calls that are `in_thread` are made side by side. `loads` names what it loads, for errors.
    """

    method: str
    arguments: Mapping[str, Any]
    limit: float
    in_thread: bool = False
    loads: str = ""
    factor: int = field(default=1, init=False)  # multiplies the limit of a call that repeats others
    begun: float = field(default=0.0, init=False)
    value: Any = field(default=None, init=False)
    failure: Failure | None = field(default=None, init=False)
    seconds: float = field(default=0.0, init=False)

    def prepare(self, process: int) -> None:
        """Set arguments and factor for the process of this number, to which it is sent next."""

    def value_or(self, error: Callable[[str], Exception]) -> Any:
        """What the call returned; if it failed, raises an error that says why."""
        if self.failure:
            raise error(self.failure.message)
        return self.value


@dataclass(eq=False)
class Sandbox:
    """A process of one service, which starts with the first call; a context manager.

    `service` is `module:class`. A new process makes the calls of `setup` first. Without a folder
    it has a temporary one. With `objects`, which only this process has, calls are made in this
    process without limits. `memory` bounds the bytes of a process with all that it started, unless
    what it loads declares more. `interrupted` is polled while results are awaited; if it returns
    true, `StopNow` is raised.

    `env` is its environment, else this process's without keys of the program and `hidden` ones.
    If its code is `foreign`, it has the short list of either. In any case it has those `named`.
    """

    service: str
    folder: Path | None
    name: str
    setup: list[ServiceCall] = field(default_factory=list)
    interpreter: str = ""
    memory: float = MEMORY
    env: Mapping[str, str] | None = None
    foreign: bool = False
    named: Collection[str] = ()
    hidden: Collection[str] = ()
    interrupted: Callable[[], bool] = lambda: False
    objects: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        self._process: Process | Local | None = None
        self._scratch = ExitStack()
        self._process_count = self._call_count = 0
        self._limit = inf  # bytes of memory, of the calls that were sent last
        self._declared = 0.0  # bytes that loaded code declares to need
        self._last_measurement = 0.0  # seconds, of memory
        self._queue = deque[ServiceCall]()
        self._sent: dict[int, ServiceCall] = {}
        self._suspects: set[ServiceCall] = set()  # One of them ended the process.
        self._done: list[ServiceCall] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        self.close(0.0 if error else GRACE)

    def close(self, grace: float = GRACE) -> None:
        """Let the process exit within so many seconds, then end all that it started.

        Calls without a result are forgotten.
        """
        self._end(grace)
        for calls in (self._queue, self._sent, self._suspects):
            calls.clear()

    def start(self) -> list[ServiceCall]:
        """Start the process; return the calls of its setup."""
        self._begin()
        return finish([self])

    def submit(self, call: ServiceCall) -> None:
        self._queue.append(call)

    def call(self, call: ServiceCall) -> ServiceCall:
        """Make one call and wait for what it returns."""
        self.submit(call)
        finish([self])
        return call

    @property
    def is_busy(self) -> bool:
        return bool(self._queue or self._sent)

    def _may_send(self, call: ServiceCall) -> bool:
        """Whether a call can be made beside those that are being made."""
        calls = (call, *self._sent.values())
        are_threads = not self._suspects and all(item.in_thread for item in calls)
        return len(calls) <= (MAX_THREADS if are_threads else 1)

    def _end(self, grace: float = 0.0) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            process.stop(grace)
        self._scratch.close()

    def _restart(self) -> None:
        """End the process; its calls are made again in a new one, before those that wait."""
        self._end()
        self._queue.extendleft(reversed(self._sent.values()))
        self._sent.clear()

    def _begin(self) -> None:
        """Start a process, whose setup comes before all other calls."""
        self._process_count += 1
        self._queue.extendleft(reversed(self.setup))
        try:
            if self.objects:
                self._process = Local(self.service, self.objects)
            else:
                folder = self.folder or self._scratch.enter_context(scratch(self.name))
                folder.mkdir(parents=True, exist_ok=True)
                self._process = Process(
                    self.service, folder, self.name, self.interpreter, self._environment()
                )
        except OSError as error:
            message = f"the process of {self.name} could not be started: {error}"
            self._fail(Failure(cause="crash", message=message))

    def _environment(self) -> Mapping[str, str]:
        env = self.env
        if env is None:
            env = {**variables.inherited(self.named, self.hidden), **dict.fromkeys(ONE_THREAD, "1")}
        if self.foreign:
            home = self._scratch.enter_context(scratch("home"))
            env = variables.short(env, self.named, home)
        return env

    def _send(self) -> None:
        """Send the calls that can be made now."""
        is_idle = self._queue and not self._sent and self._queue[0] not in self.setup
        if self._process and is_idle and self._process.has_ended():
            self._end()
        if self._process is None and self._queue:
            self._begin()
        while self._process and self._queue and self._may_send(self._queue[0]):
            call = self._queue.popleft()
            call.prepare(self._process_count)
            call.begun = time.monotonic()
            self._call_count += 1
            is_setup = call in self.setup
            memory = max(self.memory, self._declared, LOADING if is_setup else 0)
            self._limit = inf if self.objects else memory
            self._sent[self._call_count] = call
            frame = {
                "id": self._call_count,
                "method": call.method,
                "arguments": call.arguments,
                "limit": call.limit,
                "factor": call.factor,
                "in_thread": call.in_thread,
                "memory": self._limit,
            }
            self._process.post(frame)

    def _receive(self) -> None:
        lost, hangs = None, False
        for frame in self._process.collect() if self._process else ():
            if (call := self._sent.get(frame["id"])) is None:
                continue
            failure = Failure(**frame["failure"]) if "failure" in frame else None
            self._declared = max(self._declared, frame["declared"])
            if failure and (failure.cause == "memory" or frame.get("is_lost")):
                is_large = failure.cause == "memory"
                lost = self._needs_more(failure.location) if is_large else failure
                continue
            del self._sent[frame["id"]]
            call.value, call.seconds = frame.get("value"), frame["seconds"]
            self._settle(call, failure)
            hangs |= frame.get("hangs", False)
        if hangs:
            self._restart()
        elif lost:
            raise BrokenProcessError(lost)

    def _settle(self, call: ServiceCall, failure: Failure | None) -> None:
        self._suspects.discard(call)
        if failure and call.loads:
            message = str(failure)
            if failure.cause != "exception" or failure.traceback:  # Other messages name it.
                message = f"{call.loads} cannot be loaded: {message}\n{failure.traceback}".strip()
            failure = Failure(cause="loading", message=message)
        call.failure = failure
        self._done.append(call)
        if failure and call in self.setup:
            self._fail(failure)

    def _fail(self, failure: Failure) -> None:
        """Fail all calls of a process that cannot be started."""
        calls = (*self._sent.values(), *self._queue)
        for call in calls:
            call.failure = failure
        self._done += calls
        self.close(0.0)

    def _check_limits(self) -> None:
        """End a process that needs too much memory, or that does not report a late call itself."""
        process, now, failure = self._process, time.monotonic(), None
        if not isinstance(process, Process) or not self._sent:
            return
        if self._limit < inf and now - self._last_measurement > MEMORY_TICK:
            self._last_measurement = now
            if process.has_more(self._limit):
                failure = self._needs_more()
        for call in self._sent.values():
            if now > call.begun + call.limit * call.factor + SLACK:
                failure = timeout(call.limit)
        if failure:
            location = process.hung_at() if len(self._sent) == 1 else ""
            raise BrokenProcessError(replace(failure, location=location))

    def _recover(self, failure: Failure) -> None:
        """Fail the only call of a broken process; of several, make each alone in a new one."""
        if len(self._sent) == 1:
            _, call = self._sent.popitem()
            call.seconds = time.monotonic() - call.begun
            self._settle(call, failure)
        self._suspects.update(self._sent.values())
        self._restart()

    def _needs_more(self, location: str = "") -> Failure:
        limit = f"{self._limit / (1 << 30):.3g} GB of memory"
        message = f"needs more {'memory than there is' if self._limit == inf else f'than {limit}'}"
        return Failure(cause="memory", message=message, location=location)


def finish(sandboxes: Sequence[Sandbox]) -> list[ServiceCall]:
    """Wait for all calls, and return them."""
    done = poll(sandboxes, 0)
    while any(sandbox.is_busy for sandbox in sandboxes):
        if any(sandbox.interrupted() for sandbox in sandboxes):
            raise StopNow(f"stopped while {sandboxes[0].name} were called")
        done += poll(sandboxes, TICK)
    return done


def poll(sandboxes: Sequence[Sandbox], seconds: float) -> list[ServiceCall]:
    """The calls that are done, after waiting for one at most this long."""
    for sandbox in sandboxes:
        sandbox._send()
    running: list[Any] = [sandbox._process for sandbox in sandboxes if sandbox._sent]
    if running:
        running[0].wait(running, seconds)
    else:
        time.sleep(seconds)
    done = []
    for sandbox in sandboxes:
        try:
            sandbox._receive()
            sandbox._check_limits()
        except BrokenProcessError as error:
            sandbox._recover(error.failure)
        sandbox._send()
        done += sandbox._done
        sandbox._done = []
    return done


def call_once(service: str, name: str, call: ServiceCall, **options: Any) -> ServiceCall:
    """Make one call in a process of its own."""
    with Sandbox(service, None, name, **options) as sandbox:
        return sandbox.call(call)
