"""A service as tests call it in the sandbox."""

import os
import time
from pathlib import Path


class Service:
    def __init__(self, _server: object) -> None:
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

    def hang(self, file: str = "") -> None:
        """Never return; leave a file to say that it has begun."""
        if file:
            Path(file).touch()
        time.sleep(1000)

    def fill(self, megabytes: int, in_child: bool) -> int:
        """Hold so much memory for a second."""
        if in_child and (child := os.fork()):
            return os.waitpid(child, 0)[1]
        data = b"x" * (megabytes << 20)
        time.sleep(1000 if megabytes > 100 else 0)
        if in_child:
            os._exit(0)
        return len(data)
