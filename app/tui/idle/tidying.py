"""Full garbage collections wait until nobody types: each holds all threads for a tenth of a second.

What is there at the start, or survived one that took long, is never looked through again; younger
objects are collected as always.
"""

import gc
import time
from collections.abc import Callable

QUIET_S, EVERY_S, LATEST_S = 2.0, 60.0, 300.0
LONG_S = 0.05  # libraries that were loaded since, mostly
NEVER = 1_000_000_000


class Tidying:
    """Collects the oldest generation when the keys rest, and at the latest after five minutes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._before: tuple[int, int, int] | None = None
        self._last = 0.0

    def start(self) -> None:
        """Take over from the interpreter's own rhythm."""
        if self._before is None:
            self._before = gc.get_threshold()
            gc.freeze()
            gc.set_threshold(*self._before[:2], NEVER)
            gc.enable()  # off while the program was loaded
            self._last = self._clock()

    def look(self, quiet: float) -> bool:
        """Collect if it is time, where the last key was so many seconds ago; say whether it was."""
        if self._before is None:
            return False
        waited = self._clock() - self._last
        due = waited >= LATEST_S or (waited >= EVERY_S and quiet >= QUIET_S)
        if due:
            begun = self._clock()
            gc.collect()
            self._last = self._clock()
            if self._last - begun > LONG_S:
                gc.freeze()
        return due

    def stop(self) -> None:
        """Give the rhythm back."""
        if self._before is not None:
            gc.set_threshold(*self._before)
            gc.unfreeze()
            self._before = None
