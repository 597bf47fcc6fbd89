"""Starts the reward process, sends requests, and waits for replies while polling for a stop."""

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpo_engine
from grpo_engine.errors import EngineError
from grpo_engine.rewards.worker.descendants import MARK, end_all
from grpo_engine.rewards.worker.frames import GarbledError, pack, take

ROOT = Path(__file__).resolve().parents[3]
BOOT = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from grpo_engine.rewards.worker.main import main; main()"
)
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
                kept += b"\n[the log is full; further output of reward functions is dropped]\n"
            self.dropped += len(data) - room
        if kept:
            with self.path.open("ab") as file:
                file.write(kept)
            self._size += len(kept)


class RewardProcess:
    """A new interpreter in its own process group; handles one request at a time."""

    def __init__(self, folder: Path, interrupted: Callable[[], bool]) -> None:
        self._interrupted = interrupted
        self._log = CappedLog(folder / "rewards.log")
        self._trace = folder / "rewards.trace"
        self._trace.write_bytes(b"")
        self._buffer = bytearray()
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
        arguments = [sys.executable, "-P", "-u", "-c", BOOT, str(ROOT), *map(str, fds)]
        self._process = subprocess.Popen(
            arguments,
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
        """The worker's process id, also its group's id."""
        return self._process.pid

    def ask(self, frame: Any, limit: float) -> Any:
        """Send a frame and wait for the reply, at most `limit` seconds."""
        deadline = time.monotonic() + limit
        waiting = memoryview(pack(frame))
        with selectors.DefaultSelector() as selector:
            selector.register(self._reply, selectors.EVENT_READ)
            selector.register(self._output, selectors.EVENT_READ)
            selector.register(self._request, selectors.EVENT_WRITE)
            while (answer := self._answer()) is None:
                if self._interrupted():
                    raise ScoringInterruptedError("stopped while rewards were being scored")
                if time.monotonic() > deadline:
                    raise TimedOutError(self._hung_at())
                ready = selector.select(TICK)
                # A forked child can keep the pipes open after the worker has exited.
                if not ready and self._process.poll() is not None:
                    raise self._died()
                for key, _ in ready:
                    if key.fd == self._request:
                        waiting = self._send(waiting)
                        if not waiting:
                            selector.unregister(self._request)
                    elif key.fd == self._output:
                        if not self._drain():
                            selector.unregister(self._output)
                    elif not self._receive():
                        raise self._died()
            return answer

    def _answer(self) -> Any:
        try:
            return take(self._buffer)
        except GarbledError:
            raise DiedError(None, self._traced(), garbled=True) from None

    def _send(self, data: memoryview) -> memoryview:
        try:
            return data[os.write(self._request, data) :]
        except BlockingIOError:
            return data
        except BrokenPipeError:
            raise self._died() from None

    def _receive(self) -> bool:
        data = os.read(self._reply, 1 << 16)
        self._buffer += data
        return bool(data)

    def _drain(self) -> bool:
        """Move the worker's output into the log; False once it has closed its output."""
        try:
            data = os.read(self._output, 1 << 16)
        except BlockingIOError:
            return True
        self._log.write(data)
        return bool(data)

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

    def _hung_at(self) -> str:
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
        own = str(Path(grpo_engine.__file__).parent / "rewards")
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
