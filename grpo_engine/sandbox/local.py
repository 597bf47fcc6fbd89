"""Functions and classes that only this process has are called in it, without a time limit.

Calls side by side have threads of their own, which do not keep the interpreter from ending.
"""

import json
import os
import selectors
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from grpo_engine.sandbox.process import wait_for_any
from grpo_engine.sandbox.program import Server


class Local:
    """Takes the place of a `Process`."""

    def __init__(self, service: str, objects: Mapping[str, Any]) -> None:
        self._woken, self._wake = os.pipe()
        self._replies: deque[Any] = deque()
        self._server = Server(service, self._send, objects)

    def post(self, frame: Mapping[str, Any]) -> None:
        """Make a call with copies of its arguments, or begin it in a thread."""
        self._server.accept(json.loads(json.dumps(frame)))

    def collect(self) -> list[Any]:
        """The replies that have come."""
        wait_for_any([self], 0)
        return [self._replies.popleft() for _ in range(len(self._replies))]

    def has_ended(self) -> bool:
        return False

    def has_more(self, memory: float) -> bool:  # noqa: ARG002 - this process has no limit
        return False

    def hung_at(self) -> str:
        """Where a call is, is not known."""
        return ""

    def register(self, selector: selectors.BaseSelector) -> None:
        selector.register(self._woken, selectors.EVENT_READ, lambda: os.read(self._woken, 1 << 10))

    def stop(self, grace: float) -> None:  # noqa: ARG002 - a call that hangs keeps its thread
        """Take no more replies."""
        os.close(self._woken)
        with self._server.sending:
            os.close(self._wake)
            self._wake = -1
        self._server.close()

    def _send(self, frame: Any) -> None:
        self._replies.append(json.loads(json.dumps(frame)))
        with suppress(OSError):  # the other end is closed
            os.write(self._wake, b".")
