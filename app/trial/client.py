"""The workbench's side: questions to the process; a newer one replaces an older one of its kind."""

import asyncio
import atexit
import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from grpo_tui.experiments.processes import environment

MAY_FETCH = "GRPO_TUI_MAY_FETCH"  # set in a trial without network whose run would have it
PATIENCE_S = 120.0
FETCH_S = 3600.0
OVERTAKEN_S = 3.0
TICK_S = 0.1
PIECE = 1 << 16


def offline() -> dict[str, str]:
    """Return the environment of a process that downloads nothing."""
    names = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")
    may_fetch = "" if os.environ.get(names[0]) else "1"
    return {**environment(), **dict.fromkeys(names, "1"), MAY_FETCH: may_fetch}


class TrialError(RuntimeError):
    """The process gave no answer; the message says why."""


@dataclass(slots=True)
class _Job:
    key: str
    request: Mapping[str, Any]
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Any]"
    online: bool
    begun: float = 0.0
    dropped: bool = False


class TrialProcess:
    """One thread that manages at most one process; both start with the first question."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._latest: dict[str, _Job] = {}
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._online = False
        self._closing = threading.Event()

    async def ask(
        self, request: Mapping[str, Any], key: str, *, online: bool = False
    ) -> dict[str, Any]:
        """Return the answer; a later question with the same key cancels this one.

        Only `online` questions may use the network. Raises `TrialError`, and
        `asyncio.CancelledError` if a later question replaced it.
        """
        loop = asyncio.get_running_loop()
        job = _Job(key, request, loop, loop.create_future(), online)
        old = self._latest.get(key)
        if old is not None and not old.future.done():
            old.dropped = True
            old.future.cancel()
        self._latest[key] = job
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="trial", daemon=True)
            self._thread.start()
        self._jobs.put(job)
        found: dict[str, Any] = await job.future
        return found

    def close(self) -> None:
        """End the process and the thread without waiting; the interpreter's exit joins them."""
        self._closing.set()
        self._jobs.put(None)
        if self._thread is not None:
            atexit.register(self._thread.join, 2.0)

    # -- on the thread ----------------------------------------------------------------------

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None and not self._closing.is_set():
            if job.dropped:
                continue
            try:
                good, value = True, self._answer(job)
            except (TrialError, OSError, ValueError) as error:
                self._stop()
                good, value = False, TrialError(str(error))
            if self._closing.is_set():
                break
            if not job.loop.is_closed():
                # if the loop closes in between, nobody is waiting
                with contextlib.suppress(RuntimeError):
                    job.loop.call_soon_threadsafe(_settle, job.future, good, value)
        self._stop()

    def _answer(self, job: _Job) -> Any:
        job.begun = time.monotonic()
        line = json.dumps(dict(job.request)).encode() + b"\n"
        process = self._running(job.online)
        assert process.stdin is not None
        try:
            process.stdin.write(line)
            process.stdin.flush()
        except OSError:  # the process ended after a while without questions
            self._stop()
            process = self._running(job.online)
            assert process.stdin is not None
            process.stdin.write(line)
            process.stdin.flush()
        return json.loads(self._line(process, job))

    def _running(self, online: bool) -> "subprocess.Popen[bytes]":
        if self._process is not None and (
            self._process.poll() is not None or self._online != online
        ):
            self._stop()
        if self._process is None:
            self._online = online
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "grpo_tui.app.trial.process"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                start_new_session=True, env=environment() if online else offline(),
            )  # fmt: skip
        return self._process

    def _line(self, process: "subprocess.Popen[bytes]", job: _Job) -> bytes:
        assert process.stdout is not None
        file = process.stdout.fileno()
        found = bytearray()
        limit = FETCH_S if job.online else PATIENCE_S
        while not found.endswith(b"\n"):
            waited = time.monotonic() - job.begun
            if self._closing.is_set() or (job.dropped and waited > OVERTAKEN_S):
                raise TrialError("the question was given up")
            if waited > limit:
                raise TrialError(f"no answer within {limit:g} s")
            if select.select([file], [], [], TICK_S)[0]:
                piece = os.read(file, PIECE)
                if not piece:
                    code = process.wait(5.0)
                    raise TrialError(f"the trial process ended with status {code}")
                found += piece
        return bytes(found)

    def _stop(self) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        if process.stdin is not None:
            # what is left in the buffer of a broken pipe is lost anyway
            with contextlib.suppress(OSError):
                process.stdin.close()
        try:
            process.wait(0.3)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _settle(future: "asyncio.Future[Any]", good: bool, value: Any) -> None:
    if future.done():
        return
    if good:
        future.set_result(value)
    else:
        future.set_exception(value)
