"""One process of the sandbox: starts it, sends requests, collects replies, and ends it."""

import os
import re
import selectors
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any
from uuid import uuid4

from grpo_engine.platform.interpreter import command
from grpo_engine.platform.spawn import NULL, start
from grpo_engine.sandbox.descendants import MARK, end_all
from grpo_engine.sandbox.frames import GarbledError, pack, unpack
from grpo_engine.sandbox.report import Failure, is_users

PROGRAM = "from grpo_engine.sandbox.program import main; main()"
LOG_LIMIT = 1 << 20
TAIL = 200  # bytes of the last output, for messages


class BrokenProcessError(Exception):
    """The process has ended or has to be ended before it replied."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def ending(status: int, output: bytes) -> str:
    """How a process ended, in words, with the last line of its output."""
    text = f"exited with status {status}"
    if status < 0:
        names = {item.value: item.name for item in signal.Signals}
        text = f"was killed by {names.get(-status, f'signal {-status}')}"
    last = output.decode(errors="replace").strip().rpartition("\n")[2]
    return f"{text}: {last}".removesuffix(": ")


def append(log: Path, data: bytes) -> None:
    """Append what still fits to a log of `LOG_LIMIT` bytes, and note that the rest is dropped."""
    with log.open("ab") as file:
        if (left := LOG_LIMIT - file.tell()) > 0:
            note = b"\n[the log is full; further output is dropped]\n" if len(data) > left else b""
            file.write(data[:left] + note)


class Process:
    """A new interpreter, this one or another, in its own process group, which serves `service`.

    `name` is that of its log and trace in the folder; `env` is its environment.
    """

    def __init__(
        self, service: str, folder: Path, name: str, interpreter: str, env: Mapping[str, str]
    ) -> None:
        self._log = folder / f"{name}.log"
        self._trace = folder / f"{name}.trace"
        self._trace.write_bytes(b"")
        self._buffer = bytearray()
        self._pending = bytearray()  # requests beyond the pipe's capacity
        self._tail = b""
        request, self._request = os.pipe()
        self._reply, reply = os.pipe()
        self._output, output = os.pipe()
        # Nothing is written to the lifeline; it closes when this process ends.
        lifeline, self._lifeline = os.pipe()
        trace = os.open(self._trace, os.O_WRONLY | os.O_APPEND)
        fds = (request, reply, lifeline, trace)
        self._mark = uuid4().hex
        environment = {
            **env,
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONHASHSEED": "0",
            MARK: self._mark,
        }
        self._process = start(
            command(PROGRAM, *map(str, fds), service, interpreter=interpreter),
            environment,
            (NULL, output, output),
            pass_fds=fds,
            scope="group",
        )
        for fd in (*fds, output):
            os.close(fd)
        for fd in (self._request, self._reply, self._output):
            os.set_blocking(fd, False)
        self._open = {self._reply, self._output}  # readable pipes

    def post(self, frame: Any) -> None:
        """Send a frame without waiting."""
        self._pending += pack(frame)
        self._send()

    def wait(self, processes: Sequence["Process"], seconds: float) -> None:
        """Wait at most this long until one of these writes, or takes more of a request."""
        with selectors.DefaultSelector() as selector:
            for process in processes:
                for fd in process._open:
                    selector.register(fd, selectors.EVENT_READ)
                if process._pending:
                    selector.register(process._request, selectors.EVENT_WRITE)
            selector.select(seconds)

    def collect(self) -> list[Any]:
        """The replies that have come."""
        self._send()
        self._drain()
        received = self._read(self._reply)
        try:
            *lines, self._buffer = (self._buffer + received).split(b"\n")
            replies = [*map(unpack, lines)]
        except GarbledError:
            raise self._broken("wrote into the pipe of its replies") from None
        # A forked child can keep the pipes open after the process has exited.
        ended = not received and self._process.poll() is not None
        if not replies and (ended or self._reply not in self._open):
            with suppress(TimeoutExpired):
                self._process.wait(1)
            self._drain_all()
            status = self._process.returncode
            raise self._broken("closed its pipe" if status is None else ending(status, self._tail))
        return replies

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def has_more(self, memory: float) -> bool:
        """Whether the process and its descendants hold more than so many bytes."""
        import psutil

        def total(measure: Callable[[psutil.Process], float]) -> float:
            result = 0.0
            for process in processes:
                with suppress(psutil.Error):
                    result += measure(process)
            return result

        try:
            root = psutil.Process(self._process.pid)
            processes = [root, *root.children(recursive=True)]
        except psutil.Error:
            return False
        is_more = total(lambda process: process.memory_info().rss) > memory
        # The proportional set size counts shared pages once; it is slow, and Linux only.
        if is_more and sys.platform == "linux":
            is_more = total(lambda process: process.memory_full_info().pss) > memory
        return is_more

    def _send(self) -> None:
        try:
            del self._pending[: os.write(self._request, self._pending[: 1 << 20])]
        except BlockingIOError:
            return
        except BrokenPipeError:  # `collect` reports how the process ended.
            self._pending.clear()

    def _read(self, fd: int) -> bytes:
        """What is in a pipe; nothing more is expected from one that is closed."""
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return b""
        if not data:
            self._open.discard(fd)
        return data

    def _drain(self) -> bool:
        """Move output into the log; return whether there was any."""
        if data := self._read(self._output):
            append(self._log, data)
            self._tail = (self._tail + data)[-TAIL:]
        return bool(data)

    def _drain_all(self) -> None:
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline and self._drain():
            pass

    def _broken(self, reason: str) -> BrokenProcessError:
        message, location = f"its process {reason}", self._traced()
        return BrokenProcessError(Failure(cause="crash", message=message, location=location))

    def hung_at(self) -> str:
        """Get the current line from its C-level handler; works while Python hangs."""
        self._process.send_signal(signal.SIGUSR1)
        size = 0
        for _ in range(100):  # A busy machine may take a while.
            time.sleep(0.02)
            before, size = size, self._trace.stat().st_size
            if (location := self._traced()) or 0 < size == before:
                return location
        return ""

    def _traced(self) -> str:
        """The innermost line in a user's file in the last native traceback, as `file:line`."""
        text = self._trace.read_text(encoding="utf-8", errors="replace")
        lines = re.findall(r'^ *File "(.*)", line (\d+) in .*\n', text, re.MULTILINE)
        return next((f"{file}:{line}" for file, line in lines if is_users(file)), "")

    def stop(self, grace: float) -> None:
        """Let it exit, then kill its whole group and close all pipes."""
        os.close(self._request)
        if grace:
            with suppress(TimeoutExpired):
                self._process.wait(grace)
        end_all(self._mark, self._process.pid)
        self._process.wait()
        self._drain_all()
        for fd in (self._reply, self._output, self._lifeline):
            os.close(fd)
