"""Starts a process for users' code, sends requests, and collects replies.

Reward functions have one such process, environments several.
"""

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import grpo_engine
from grpo_engine.errors import EngineError
from grpo_engine.platform.interpreter import command
from grpo_engine.rewards.worker.descendants import MARK, end_all
from grpo_engine.rewards.worker.frames import GarbledError, pack, take

REWARDS = "from grpo_engine.rewards.worker.main import main; main()"
# Libraries in the worker get one thread each, to leave the cores to the engine.
ONE_THREAD = (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS", "RAYON_NUM_THREADS",
)  # fmt: skip
LOG_LIMIT = 1 << 20
TICK = 0.05


class TimedOutError(Exception):
    """No reply within the limit; `where` is the file and line where it hung, if known."""

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self.where = where


class DiedError(Exception):
    """The process ended before it replied."""

    def __init__(self, status: int | None, where: str, *, garbled: bool = False) -> None:
        super().__init__(status)
        self.status, self.where, self.garbled = status, where, garbled

    @property
    def how(self) -> str:
        """How it ended, in words."""
        if self.garbled:
            return "wrote into the pipe of its replies"
        if self.status is None:
            return "closed its pipe"
        if self.status < 0:
            try:
                name = signal.Signals(-self.status).name
            except ValueError:
                name = f"signal {-self.status}"
            return f"was killed by {name}"
        return f"exited with status {self.status}"


class ScoringInterruptedError(EngineError):
    """The user requested a stop during scoring."""


class CappedLog:
    """A log file that keeps only the first `limit` bytes."""

    def __init__(self, path: Path, limit: int = LOG_LIMIT) -> None:
        self.path, self.limit, self.dropped = path, limit, 0
        self._size = path.stat().st_size if path.exists() else 0

    def write(self, data: bytes) -> None:
        """Append what still fits, and note once that the rest is dropped."""
        room = max(0, self.limit - self._size)
        kept = data[:room]
        if len(kept) < len(data):
            if self.dropped == 0:
                kept += b"\n[the log is full; further output is dropped]\n"
            self.dropped += len(data) - room
        if kept:
            with self.path.open("ab") as file:
                file.write(kept)
            self._size += len(kept)


class UserProcess:
    """A new interpreter, this one or another, in its own process group, which runs this code.

    `interrupted` is polled while `ask` waits. `name` is that of its log and trace in the folder.
    """

    def __init__(
        self,
        folder: Path,
        interrupted: Callable[[], bool],
        code: str = REWARDS,
        name: str = "rewards",
        interpreter: str = "",
    ) -> None:
        self._interrupted = interrupted
        self._log = CappedLog(folder / f"{name}.log")
        self._trace = folder / f"{name}.trace"
        self._trace.write_bytes(b"")
        self._buffer = bytearray()
        self._waiting = bytearray()  # requests that the pipe has not taken yet
        self._writes = self._replies = True  # whether it has its output, its replies open
        request, self._request = os.pipe()
        self._reply, reply = os.pipe()
        self._output, output = os.pipe()
        # Nothing is written to it: when it closes, the worker knows that this process is gone.
        lifeline, self._lifeline = os.pipe()
        trace = os.open(self._trace, os.O_WRONLY | os.O_APPEND)
        fds = (request, reply, lifeline, trace)
        environment = {**os.environ, **dict.fromkeys(ONE_THREAD, "1")}
        self._mark = uuid4().hex
        environment |= {"TOKENIZERS_PARALLELISM": "false", "PYTHONHASHSEED": "0"}
        environment[MARK] = self._mark
        self._process = subprocess.Popen(
            command(code, *map(str, fds), interpreter=interpreter),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=fds,
            env=environment,
            process_group=0,
        )
        for fd in (*fds, output):
            os.close(fd)
        for fd in (self._request, self._reply, self._output):
            os.set_blocking(fd, False)

    @property
    def pid(self) -> int:
        """The process id, also its group's id."""
        return self._process.pid

    def ask(self, frame: Any, limit: float) -> Any:
        """Send a frame and wait for the reply, at most `limit` seconds."""
        deadline = time.monotonic() + limit
        self.post(frame)
        while not (replies := self.collect(TICK)):
            if self._interrupted():
                raise ScoringInterruptedError("stopped while rewards were being scored")
            if time.monotonic() > deadline:
                raise TimedOutError(self.hung_at())
        return replies[0]

    def post(self, frame: Any) -> None:
        """Send a frame without waiting."""
        self._waiting += pack(frame)
        self._send()

    def collect(self, seconds: float) -> list[Any]:
        """The replies that have come, after waiting for one at most this long."""
        heard = wait_for_any([self], seconds)
        found = []
        while (answer := self._answer()) is not None:
            found.append(answer)
        # A forked child can keep the pipes open after the worker has exited.
        ended = not heard and self._process.poll() is not None
        if not found and (ended or not self._replies):
            raise self._died()
        return found

    def register(self, selector: selectors.BaseSelector) -> None:
        """Have the selector wait for what the process writes, and send what waits."""
        for fd, is_open, act in (
            (self._reply, self._replies, self._receive),
            (self._output, self._writes, self._drain),
        ):
            if is_open:
                selector.register(fd, selectors.EVENT_READ, act)
        if self._waiting:
            selector.register(self._request, selectors.EVENT_WRITE, self._send)

    def _answer(self) -> Any:
        try:
            return take(self._buffer)
        except GarbledError:
            raise DiedError(None, self._traced(), garbled=True) from None

    def _send(self) -> None:
        try:
            del self._waiting[: os.write(self._request, self._waiting[: 1 << 20])]
        except BlockingIOError:
            return
        except BrokenPipeError:
            raise self._died() from None

    def _receive(self) -> None:
        data = os.read(self._reply, 1 << 16)
        self._buffer += data
        self._replies = bool(data)

    def _drain(self) -> None:
        """Move the worker's output into the log."""
        try:
            data = os.read(self._output, 1 << 16)
        except BlockingIOError:
            return
        self._log.write(data)
        self._writes = bool(data)

    def _drain_all(self) -> None:
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:
            try:
                data = os.read(self._output, 1 << 16)
            except BlockingIOError:
                return
            if not data:
                return
            self._log.write(data)

    def _died(self) -> DiedError:
        try:
            status = self._process.wait(1)
        except subprocess.TimeoutExpired:
            status = None
        self._drain_all()
        return DiedError(status, self._traced())

    def hung_at(self) -> str:
        """Get the worker's current line from its C-level handler; works while Python hangs."""
        try:
            self._process.send_signal(signal.SIGUSR1)
        except ProcessLookupError:
            return ""
        size = 0
        for _ in range(100):  # on a busy machine the reply may take a while
            time.sleep(0.02)
            before, size = size, self._trace.stat().st_size
            if (where := self._traced()) or 0 < size == before:
                return where
        return ""

    def _traced(self) -> str:
        """The innermost line in a user's file in the last native traceback, as `file:line`."""
        text = self._trace.read_text(encoding="utf-8", errors="replace")
        whole = text[: text.rfind("\n") + 1]  # the last line may be incomplete
        lines = [line.strip() for line in whole.splitlines() if line.strip().startswith('File "')]
        parent = Path(grpo_engine.__file__).parent
        own = (str(parent / "rewards"), str(parent / "environments" / "worker"))
        for line in lines:
            file, _, rest = line.removeprefix('File "').partition('", line ')
            installed = "site-packages" in file or "/lib/python" in file or file.startswith("<")
            if not installed and not file.startswith(own):
                return f"{file}:{rest.partition(' ')[0]}"
        return ""

    def stop(self, grace: float = 1.0) -> None:
        """Let the worker exit, then kill its whole group and close all pipes."""
        os.close(self._request)
        if grace:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(grace)
        end_all(self._mark, self._process.pid)
        self._process.wait()
        self._drain_all()
        for fd in (self._reply, self._output, self._lifeline):
            os.close(fd)


class Waits(Protocol):
    def register(self, selector: selectors.BaseSelector) -> None:
        """Have the selector wait for it, with what to do then."""


def wait_for_any(processes: Sequence[Waits], seconds: float | None) -> bool:
    """Wait at most this long until a process replies or writes; take what it wrote."""
    with selectors.DefaultSelector() as selector:
        for process in processes:
            process.register(selector)
        ready = selector.select(seconds)
        for key, _ in ready:
            key.data()
        return bool(ready)
