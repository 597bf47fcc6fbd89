"""What a user may ask of a running engine: requests that it takes up at the next safe point."""

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

Verb = Literal["pause", "continue", "stop_after_step", "stop_now", "checkpoint"]


class StopNow(Exception):  # noqa: N818 (a request, not an error)
    """The unfinished step is to be dropped, as the user asked."""


@dataclass(slots=True)
class Control:
    """Requests to one run; any thread may ask, only the engine takes."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _wake: threading.Event = field(default_factory=threading.Event)
    _paused: bool = False
    _stop_after_step: bool = False
    _stop_now: bool = False
    _checkpoint: bool = False
    _pins: deque[str] = field(default_factory=deque)
    _lost: str = ""

    def ask(self, verb: Verb) -> None:
        """Ask for `verb`; asking twice is asking once."""
        with self._lock:
            match verb:
                case "pause":
                    self._paused = True
                case "continue":
                    self._paused = False
                case "stop_after_step":
                    self._stop_after_step, self._paused = True, False
                case "stop_now":
                    self._stop_now, self._paused = True, False
                case "checkpoint":
                    self._checkpoint = True
            self._wake.set()

    def pin(self, example_key: str) -> None:
        """Ask to follow one more prompt through the run."""
        with self._lock:
            self._pins.append(example_key)

    def lose(self, message: str) -> None:
        """Say that another rank of the run is gone; the first to say so is heard."""
        with self._lock:
            self._lost = self._lost or message

    @property
    def lost(self) -> str:
        """Which other rank is gone, and why; empty while all are there."""
        return self._lost

    @property
    def paused(self) -> bool:
        """Whether the run should wait."""
        return self._paused

    @property
    def stop_now(self) -> bool:
        """Whether the unfinished step should be dropped."""
        return self._stop_now

    @property
    def stop_after_step(self) -> bool:
        """Whether the run should end once the step in hand is done."""
        return self._stop_after_step or self._stop_now

    @property
    def wants_checkpoint(self) -> bool:
        """Whether a checkpoint was asked for and not yet taken up."""
        return self._checkpoint

    def take_checkpoint(self) -> bool:
        """Return whether a checkpoint was asked for, and forget it."""
        with self._lock:
            asked, self._checkpoint = self._checkpoint, False
            return asked

    def take_pins(self) -> list[str]:
        """Return the example keys to pin, and forget them."""
        with self._lock:
            pins = list(self._pins)
            self._pins.clear()
            return pins

    def wait_while_paused(self, seconds: float) -> bool:
        """Wait up to `seconds` for the pause to end and return whether it still holds."""
        self._wake.clear()
        if self._paused:
            self._wake.wait(seconds)
        return self._paused
