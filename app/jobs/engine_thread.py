"""The process's one permanent engine thread: all MLX work runs on it, one job after another."""

import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

Work = Callable[[], None]
T = TypeVar("T")


class EngineThread(threading.Thread):
    """Runs jobs in order; sets its own priority before the first one loads BLAS and MLX."""

    def __init__(self, niceness: int = 0) -> None:
        super().__init__(name="engine", daemon=True)
        self._niceness = niceness
        self._jobs: SimpleQueue[Work | None] = SimpleQueue()

    def submit(self, work: Work) -> None:
        self._jobs.put(work)

    def begin(self, work: Callable[[], T]) -> Future[T]:
        """Queue a job and return the future of its result."""
        result: Future[T] = Future()

        def job() -> None:
            try:
                result.set_result(work())
            except BaseException as error:
                result.set_exception(error)

        self.submit(job)
        return result

    def finish(self) -> None:
        """Stop after the queued jobs."""
        self._jobs.put(None)

    def run(self) -> None:
        """Run jobs until the end; the thread's entry point."""
        from grpo_engine.platform import heap
        from grpo_engine.setup.startup import enter_engine

        enter_engine(self._niceness)
        try:
            while (work := self._jobs.get()) is not None:
                work()
                heap.trim()
        finally:
            # MLX keeps streams per thread; streams of an ended thread must not remain.
            if (mlx := sys.modules.get("mlx.core")) is not None:
                mlx.clear_streams()
