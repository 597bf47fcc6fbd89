"""A service as tests call it in the sandbox."""

import atexit
import os
import time
from pathlib import Path
from types import SimpleNamespace

from grpo_engine.sandbox.program import Server
from grpo_engine.sandbox.report import ProcessLostError


class Service:
    def __init__(self, server: Server) -> None:
        self.server = server
        self.texts: list[str] = []

    def load(self, text: str) -> str:
        """Fail for an empty text."""
        if not text:
            raise ValueError("nothing to load")
        self.texts.append(text)
        return text

    def echo(self, text: str) -> list[str]:
        return [*self.texts, text]

    def pid(self) -> int:
        return os.getpid()

    def leave_at_exit(self, file: str) -> None:
        atexit.register(Path(file).touch)

    def hang(self, file: str = "") -> None:
        """Never return; leave a file to say that it has begun."""
        if file:
            Path(file).touch()
        time.sleep(1000)

    def nap(self) -> int:
        time.sleep(0.5)
        return os.getpid()

    def lose(self, text: str) -> None:
        raise ProcessLostError(text) if text else ProcessLostError

    def declare(self, gigabytes: object) -> None:
        self.server.allow_memory(SimpleNamespace(memory_gb=gigabytes))

    def fill(self, megabytes: int) -> int:
        return len(b"x" * (megabytes << 20))

    def fill_slowly(self, megabytes: int) -> int:
        return len([[0] * 100 for _ in range(megabytes << 10)])

    def fill_children(self, megabytes: int, children: int) -> int:
        """Have children that hold so much each, for longer than it takes to measure it."""
        pids = []
        for _ in range(children):
            if not (pid := os.fork()):
                data = b"x" * (megabytes << 20)
                time.sleep(1)
                os._exit(len(data) % 2)
            pids.append(pid)
        return sum(os.waitpid(pid, 0)[1] for pid in pids)
