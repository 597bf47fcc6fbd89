"""Measures the time of a step and its phases, without pauses."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from grpo_engine.platform.load import ExternalLoad


class Clock:
    """A clock that stops while the run is paused."""

    def __init__(self) -> None:
        self.phases: dict[str, float] = {}
        self._external = ExternalLoad()
        self._paused_for = 0.0
        self._started, self._processor = self.now(), time.process_time()

    def now(self) -> float:
        """Seconds of work since a fixed moment."""
        return time.perf_counter() - self._paused_for

    def start_step(self) -> None:
        """Begin a step and reset the phases."""
        self.phases, self._started, self._processor = {}, self.now(), time.process_time()
        self._external.start()

    @property
    def step_seconds(self) -> float:
        return self.now() - self._started

    @property
    def processor_seconds(self) -> float:
        """Processor seconds of this process since `start_step`, of all its threads."""
        return time.process_time() - self._processor

    @property
    def external_seconds(self) -> float:
        """Processor seconds of other programs since `start_step`, those of pauses estimated."""
        return self._external.processors() * self.step_seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the block out of every time."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self._paused_for += time.perf_counter() - begun

    def add(self, name: str, seconds: float) -> None:
        self.phases[name] = self.phases.get(name, 0.0) + seconds

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the duration of the block to a phase."""
        begun = self.now()
        try:
            yield
        finally:
            self.add(name, self.now() - begun)
