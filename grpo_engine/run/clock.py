"""Time of a step by phase, without the time that the run was paused."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Seconds that stand still while the run is paused."""

    def __init__(self) -> None:
        self.phases: dict[str, float] = {}
        self._lost = 0.0
        self._halted: float | None = None
        self._started = self.now()

    def now(self) -> float:
        """Seconds of work since some fixed moment."""
        return time.perf_counter() - self._lost

    def start_step(self) -> None:
        """Begin a step: no phase has taken any time."""
        self.phases, self._started = {}, self.now()

    @property
    def step_seconds(self) -> float:
        """Seconds since `start_step`."""
        return self.now() - self._started

    def halt(self) -> None:
        """The run is paused from here."""
        self._halted = time.perf_counter()

    def go_on(self) -> None:
        """The pause is over."""
        if self._halted is not None:
            self._lost += time.perf_counter() - self._halted
            self._halted = None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of the block to a phase."""
        begun = self.now()
        try:
            yield
        finally:
            self.phases[name] = self.phases.get(name, 0.0) + self.now() - begun
