"""Delay full garbage collections until no key is pressed: each stops all threads for 100 to 200 ms.

Objects that exist at the start are frozen and never scanned; younger ones are collected as usual.
Without this one key in twenty takes 106 to 171 ms while a model trains; with it 36 (docs/speed.md).
"""

import gc
import time
from collections.abc import Callable

QUIET_S, EVERY_S, LATEST_S = 2.0, 60.0, 300.0
NEVER = 1_000_000_000


class IdleGarbageCollection:
    """Collect the oldest generation while no key is pressed, but at least every five minutes."""

    _before: tuple[int, int, int] | None = None
    _last = 0.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock

    def start(self) -> None:
        """Replace the interpreter's own schedule."""
        self._before = gc.get_threshold()
        self._last = self._clock()
        gc.freeze()
        gc.set_threshold(*self._before[:2], NEVER)

    def poll(self, quiet: float) -> bool:
        """Collect if it is time, `quiet` seconds after the last key; return whether it did."""
        if self._before is None:
            return False
        waited = self._clock() - self._last
        due = waited >= LATEST_S or (waited >= EVERY_S and quiet >= QUIET_S)
        if due:
            gc.collect()
            self._last = self._clock()
        return due

    def stop(self) -> None:
        """Restore the interpreter's schedule."""
        if self._before is not None:
            gc.set_threshold(*self._before)
            gc.unfreeze()
            self._before = None
