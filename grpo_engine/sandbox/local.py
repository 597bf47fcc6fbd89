"""Functions and classes that only this process has are called in it, without a time limit.

Calls side by side have threads of their own, which do not keep the interpreter from ending.
"""

import json
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from grpo_engine.sandbox.program import Server


class Local:
    """Takes the place of a `Process`, alone in its sandbox."""

    def __init__(self, service: str, objects: Mapping[str, Any]) -> None:
        self._replies: deque[Any] = deque()
        self._has_replied = threading.Event()
        self._server = Server(service, self._send, objects)

    def post(self, frame: Mapping[str, Any]) -> None:
        """Make a call with copies of its arguments, or begin it in a thread."""
        self._server.accept(json.loads(json.dumps(frame)))

    def wait(self, _: Sequence["Local"], seconds: float) -> None:
        """Wait at most this long for a reply."""
        self._has_replied.wait(seconds)

    def collect(self) -> list[Any]:
        """The replies that have come."""
        self._has_replied.clear()
        return [self._replies.popleft() for _ in range(len(self._replies))]

    def has_ended(self) -> bool:
        return False

    def stop(self, grace: float) -> None:  # noqa: ARG002 - a call that hangs keeps its thread
        """End what is awaited; nobody collects later replies."""
        self._server.close()

    def _send(self, frame: Any) -> None:
        self._replies.append(json.loads(json.dumps(frame)))
        self._has_replied.set()
