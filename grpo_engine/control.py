"""Requests from the user to a running engine, handled at its next safe point."""

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

Verb = Literal["pause", "continue", "stop_after_step", "stop_now", "checkpoint"]


class StopNow(Exception):  # noqa: N818 (a request, not an error)
    """Raised to drop the unfinished step at the user's request."""


@dataclass(slots=True)
class Control:
    """Requests to one run; any thread may make them, only the engine consumes them."""

    paused: bool = False  # the run should wait
    stop_now: bool = False  # the unfinished step should be dropped
    checkpoint_requested: bool = False
    rank_failure: str = ""  # the rank that is gone, and the reason
    blocked: str = ""  # why the next step must wait
    _stop_after_step: bool = False
    _pins: deque[str] = field(default_factory=deque)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _wake: threading.Event = field(default_factory=threading.Event)

    def ask(self, verb: Verb) -> None:
        """Request `verb`; repeating a request has no effect."""
        with self._lock:
            match verb:
                case "pause" | "continue":
                    self.paused = verb == "pause"
                case "stop_after_step":
                    self._stop_after_step, self.paused = True, False
                case "stop_now":
                    self.stop_now, self.paused = True, False
                case "checkpoint":
                    self.checkpoint_requested = True
            self._wake.set()

    def pin(self, example_key: str) -> None:
        """Request to pin one more prompt."""
        with self._lock:
            self._pins.append(example_key)

    def report_rank_failure(self, message: str) -> None:
        """Report that another rank is gone; only the first report is kept."""
        with self._lock:
            self.rank_failure = self.rank_failure or message

    def block(self, reason: str) -> None:
        """Hold the run before its next step, for this reason; an empty one lets it continue."""
        with self._lock:
            self.blocked = reason
            self._wake.set()

    @property
    def stop_after_step(self) -> bool:
        """Whether the run should end after the current step."""
        return self._stop_after_step or self.stop_now

    def pop_checkpoint(self) -> bool:
        """Return whether a checkpoint was requested, and clear the request."""
        with self._lock:
            requested, self.checkpoint_requested = self.checkpoint_requested, False
            return requested

    def pop_pins(self) -> list[str]:
        """Return the example keys to pin, and clear them."""
        with self._lock:
            pins = list(self._pins)
            self._pins.clear()
            return pins

    def wait_while_paused(self, seconds: float) -> bool:
        """Wait up to `seconds` for the pause to end; return whether the run is still paused."""
        self._wake.clear()
        if self.paused:
            self._wake.wait(seconds)
        return self.paused

    def wait(self, seconds: float) -> None:
        """Wait up to `seconds` for any request."""
        self._wake.clear()
        self._wake.wait(seconds)
