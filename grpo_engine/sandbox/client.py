"""Calls of users' code in the sandbox's processes: time limits, memory limit, restart.

A call that takes too long, needs too much memory or ends its process fails, and the next one gets a
new process. If several calls run in a process that is lost, they are made again one at a time, to
find the one at fault. A hang in one process never ends the calls of another.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any, Final, Self

from grpo_engine.control import StopNow
from grpo_engine.platform.scratch import scratch
from grpo_engine.sandbox.local import Local
from grpo_engine.sandbox.process import DiedError, Process
from grpo_engine.sandbox.report import Failure, timeout

SLACK = 2.0  # seconds after its limit in which a call may still report by itself
TICK = 0.05
AT_A_TIME = 64  # calls in threads that a process makes side by side
MEMORY_TICK = 0.1  # seconds between measurements of memory
MEMORY: Final = 4 << 30  # bytes, unless what is called declares that it needs more
# What loads may need more: what takes over half of the machine cannot be used beside training.
LOADING: Final = max(MEMORY, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)


@dataclass(slots=True, eq=False)
class Call:
    """A method of the service, its arguments and its limit in seconds; then what it returned.

    Of several processes, `worker` is the index of the one to call. Calls that are `in_thread` are
    made side by side. `loads` names what it loads, for errors.
    """

    method: str
    arguments: Mapping[str, Any]
    limit: float
    worker: int = 0
    in_thread: bool = False
    loads: str = ""
    begun: float = field(default=0.0, init=False)
    value: Any = field(default=None, init=False)
    failure: Failure | None = field(default=None, init=False)
    seconds: float = field(default=0.0, init=False)

    def prepare(self, process: int) -> None:
        """Set arguments and limit for the process of this number, to which it is sent next."""

    def value_or(self, error: Callable[[str], Exception]) -> Any:
        """What the call returned; if it failed, raises an error that says why."""
        if self.failure:
            raise error(self.failure.message)
        return self.value


@dataclass(slots=True, eq=False)
class _Worker:
    """A process, if it runs, and its calls."""

    name: str
    process: Process | Local | None = None
    number: int = 0  # of the process
    memory: float = inf  # the limit of the calls that were sent last
    declared: float = 0.0  # the memory that what it has loaded may need
    measured: float = 0.0  # when its memory was
    queue: deque[Call] = field(default_factory=deque)
    sent: dict[int, Call] = field(default_factory=dict)
    suspects: set[Call] = field(default_factory=set)  # calls of which one ended the process

    @property
    def is_busy(self) -> bool:
        return bool(self.queue or self.sent)

    def may_send(self, call: Call) -> bool:
        """Whether a call can be made beside those that are being made."""
        calls = (call, *self.sent.values())
        are_threads = not self.suspects and all(other.in_thread for other in calls)
        return len(calls) <= (AT_A_TIME if are_threads else 1)

    def end(self, grace: float = 0.0) -> None:
        if self.process is not None:
            process, self.process = self.process, None
            process.stop(grace)

    def clear(self, grace: float = 0.0) -> None:
        """End the process and forget the calls."""
        self.end(grace)
        for calls in (self.queue, self.sent, self.suspects):
            calls.clear()

    def restart(self) -> None:
        """End the process; its calls are made again in a new one, before those that wait."""
        self.end()
        self.queue.extendleft(reversed(self.sent.values()))
        self.sent.clear()


class Sandbox:
    """Processes of one service, which start with their first calls; a context manager.

    `service` is `module:class`. Each process makes the calls of `setup` first. With `objects`,
    which only this process has, calls are made in this process without limits. `memory` bounds the
    bytes of a process with all that it started, unless what it loads declares more. `interrupted`
    is polled while results are awaited; if it returns true, `StopNow` is raised.
    """

    def __init__(
        self,
        service: str,
        folder: Path,
        name: str,
        *,
        setup: Sequence[Call] = (),
        processes: int = 1,
        interpreter: str = "",
        memory: float = MEMORY,
        env: Mapping[str, str] | None = None,
        interrupted: Callable[[], bool] = lambda: False,
        objects: Mapping[str, Any] | None = None,
    ) -> None:
        self._service, self._name, self._setup = service, name, setup
        self._folder, self._interpreter, self._env = folder, interpreter, env
        self._memory = inf if objects else memory
        self._interrupted, self._objects = interrupted, objects
        names = [name] if processes == 1 else [f"{name}-{i + 1}" for i in range(processes)]
        self._workers = [_Worker(name) for name in names]
        self._processes = self._calls = 0
        self._done: list[Call] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self, grace: float = 0.0, *, idle: bool = True) -> None:
        """Let the processes exit within so many seconds, then end all that they started.

        Calls without a result are forgotten. Without `idle`, processes that do nothing stay.
        """
        for worker in self._workers:
            if idle or worker.is_busy:
                worker.clear(grace)
        self._done.clear()

    def start(self) -> list[Call]:
        """Start the first process; return the calls of its setup."""
        self._begin(self._workers[0])
        return self.finish()

    def submit(self, call: Call) -> None:
        self._workers[call.worker].queue.append(call)

    def ask(self, call: Call) -> Call:
        """Make one call and wait for what it returns."""
        self.submit(call)
        self.finish()
        return call

    def finish(self) -> list[Call]:
        """Wait for all calls, and return them."""
        done = self.poll(0)
        while any(worker.is_busy for worker in self._workers):
            if self._interrupted():
                raise StopNow(f"stopped while {self._name} were called")
            done += self.poll(TICK)
        return done

    def poll(self, seconds: float) -> list[Call]:
        """The calls that are done, after waiting for one at most this long."""
        for worker in self._workers:
            self._send(worker)
        running: list[Any] = [worker.process for worker in self._workers if worker.sent]
        if running:
            running[0].wait(running, seconds)
        elif not self._done:
            time.sleep(seconds)
        for worker in self._workers:
            self._receive(worker)
            self._check_limits(worker)
            self._send(worker)
        done, self._done = self._done, []
        return done

    def _begin(self, worker: _Worker) -> None:
        """Start a process, whose setup comes before all other calls."""
        self._processes += 1
        worker.number = self._processes
        worker.queue.extendleft(reversed(self._setup))
        try:
            if self._objects:
                worker.process = Local(self._service, self._objects)
            else:
                self._folder.mkdir(parents=True, exist_ok=True)
                worker.process = Process(
                    self._service, self._folder, worker.name, self._interpreter, self._env
                )
        except OSError as error:
            message = f"the process of {self._name} could not be started: {error}"
            self._fail(worker, Failure(cause="crash", message=message))

    def _send(self, worker: _Worker) -> None:
        """Send the calls that can be made now."""
        is_idle = worker.queue and not worker.sent and worker.queue[0] not in self._setup
        if worker.process and is_idle and worker.process.has_ended():
            worker.end()
        if worker.process is None and worker.queue:
            self._begin(worker)
        while worker.process and worker.queue and worker.may_send(worker.queue[0]):
            call = worker.queue.popleft()
            call.prepare(worker.number)
            call.begun = time.monotonic()
            self._calls += 1
            is_setup = call in self._setup
            worker.memory = max(self._memory, worker.declared, LOADING if is_setup else 0)
            worker.sent[self._calls] = call
            frame = {
                "id": self._calls, "method": call.method, "arguments": call.arguments,
                "limit": call.limit, "in_thread": call.in_thread, "memory": worker.memory,
            }  # fmt: skip
            try:
                worker.process.post(frame)
            except DiedError as error:
                self._died(worker, error)

    def _receive(self, worker: _Worker) -> None:
        if worker.process is None:
            return
        try:
            frames = worker.process.collect()
        except DiedError as error:
            self._died(worker, error)
            return
        too_large, hangs = None, False
        for frame in frames:
            if (call := worker.sent.get(frame["id"])) is None:
                continue
            failure = Failure(**frame["failure"]) if "failure" in frame else None
            worker.declared = max(worker.declared, frame["declared"])
            if failure and failure.cause == "memory":
                too_large = failure
                continue
            del worker.sent[frame["id"]]
            call.value, call.seconds = frame.get("value"), frame["seconds"]
            self._settle(worker, call, failure)
            hangs |= frame.get("hangs", False)
        if hangs:
            worker.restart()
        elif too_large:
            self._lost(worker, _needs_more(worker, too_large.location))

    def _settle(self, worker: _Worker, call: Call, failure: Failure | None) -> None:
        worker.suspects.discard(call)
        if failure and call.loads:
            message = str(failure)
            if failure.cause != "exception" or failure.traceback:  # else it names what it is about
                message = f"{call.loads} cannot be loaded: {message}\n{failure.traceback}".strip()
            failure = Failure(cause="loading", message=message)
        call.failure = failure
        self._done.append(call)
        if failure and call in self._setup:
            self._fail(worker, failure)

    def _fail(self, worker: _Worker, failure: Failure) -> None:
        """Fail all calls of a process that cannot be started."""
        calls = (*worker.sent.values(), *worker.queue)
        for call in calls:
            call.failure = failure
        self._done += calls
        worker.clear()

    def _check_limits(self, worker: _Worker) -> None:
        """End a process that needs too much memory, or that does not report a late call itself."""
        process, now = worker.process, time.monotonic()
        if process is None or isinstance(process, Local) or not worker.sent:
            return
        failure = None
        if worker.memory < inf and now - worker.measured > MEMORY_TICK:
            worker.measured = now
            if process.has_more(worker.memory):
                failure = _needs_more(worker)
        for call in worker.sent.values():
            if now > call.begun + call.limit + SLACK:
                failure = timeout(call.limit)
        if failure:
            location = process.hung_at() if len(worker.sent) == 1 else ""
            self._lost(worker, replace(failure, location=location))

    def _died(self, worker: _Worker, error: DiedError) -> None:
        message, location = f"its process {error}", error.location
        self._lost(worker, Failure(cause="crash", message=message, location=location))

    def _lost(self, worker: _Worker, failure: Failure) -> None:
        """The process is lost: the only call did it; of several, each is tried alone."""
        if len(worker.sent) == 1:
            _, call = worker.sent.popitem()
            call.seconds = time.monotonic() - call.begun
            self._settle(worker, call, failure)
        worker.suspects.update(worker.sent.values())
        worker.restart()


def ask_once(service: str, name: str, call: Call, **options: Any) -> Call:
    """Make one call in a process of its own."""
    with scratch(name) as folder, Sandbox(service, folder, name, **options) as sandbox:
        return sandbox.ask(call)


def _needs_more(worker: _Worker, location: str = "") -> Failure:
    limit = f"{worker.memory / (1 << 30):.3g} GB of memory"
    message = f"needs more {'memory than there is' if worker.memory == inf else f'than {limit}'}"
    return Failure(cause="memory", message=message, location=location)
