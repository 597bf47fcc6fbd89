"""The process's one permanent engine thread: all of MLX happens on it, one job after another."""

import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue

Work = Callable[[], None]


class EngineThread(threading.Thread):
    """Does jobs in their order; lowers its own priority before the first loads BLAS and MLX."""

    def __init__(self, niceness: int = 0) -> None:
        super().__init__(name="engine", daemon=True)
        self._niceness = niceness
        self._jobs: SimpleQueue[Work | None] = SimpleQueue()

    def submit(self, work: Work) -> None:
        """Do this after what was submitted before."""
        self._jobs.put(work)

    def finish(self) -> None:
        """End after the jobs that were submitted."""
        self._jobs.put(None)

    def run(self) -> None:
        """Wait for jobs; the thread's own entry."""
        from grpo_engine.platform import enter_engine, heap

        enter_engine(self._niceness)
        try:
            while (work := self._jobs.get()) is not None:
                work()
                heap.give_back()
        finally:
            # MLX keeps streams for each thread, and must not find them when the thread is gone
            if (mlx := sys.modules.get("mlx.core")) is not None:
                mlx.clear_streams()
