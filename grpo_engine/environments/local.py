"""Environments and tools that only this process has run in threads of it, without a time limit."""

import os
import selectors
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from grpo_engine.environments.worker.main import Server
from grpo_engine.rewards.worker.frames import pack, take
from grpo_engine.rewards.worker.process import wait_for_any


class LocalServer(Server):
    """Finds the objects that this process was given; what a call says after the end is dropped."""

    def __init__(self, reply: int, objects: Mapping[str, Any]) -> None:
        super().__init__(reply)
        self._objects = objects

    def find(self, name: str, what: str) -> tuple[Any, str]:
        if name not in self._objects:
            return super().find(name, what)
        code = getattr(self._objects[name], "__code__", None)
        return self._objects[name], code.co_filename if code else ""

    def send(self, frame: Mapping[str, Any]) -> None:
        with suppress(OSError):  # the other end is closed
            super().send(frame)


class LocalProcess:
    """Takes the place of a `UserProcess`."""

    def __init__(self, objects: Mapping[str, Any]) -> None:
        self._reply, self._write = os.pipe()
        os.set_blocking(self._reply, False)
        self._buffer = bytearray()
        self._server = LocalServer(self._write, objects)

    def post(self, frame: Mapping[str, Any]) -> None:
        """Begin a call in a thread."""
        if frame["do"] == "load":  # the pipe may be too small for what this thread itself writes
            self._buffer += pack({"id": frame["id"], **self._server.load(frame)})
        else:
            self._server.accept(frame)

    def ask(self, frame: Mapping[str, Any], limit: float) -> Any:  # noqa: ARG002  # as the process has it; no limit here
        """Load the environments."""
        self.post(frame)
        return take(self._buffer)

    def collect(self, seconds: float) -> list[Any]:
        """The replies that have come, after waiting for one at most this long."""
        wait_for_any([self], seconds)
        found = []
        while (answer := take(self._buffer)) is not None:
            found.append(answer)
        return found

    def hung_at(self) -> str:
        """Nothing is known of where a call is."""
        return ""

    def register(self, selector: selectors.BaseSelector) -> None:
        selector.register(self._reply, selectors.EVENT_READ, self._receive)

    def _receive(self) -> None:
        self._buffer += os.read(self._reply, 1 << 16)

    def stop(self, grace: float = 0.0) -> None:  # noqa: ARG002
        """Take no more replies; a call that hangs keeps its thread."""
        os.close(self._reply)
        with self._server.sending:
            self._server.reply = -1
            os.close(self._write)
        self._server.close()
