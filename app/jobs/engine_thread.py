"""The process's one permanent engine thread: all of MLX happens on it, one job after another."""

import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

from grpo_engine.control import Control
from grpo_engine.errors import EngineError
from grpo_engine.events import Event, RunFailed

if TYPE_CHECKING:
    from grpo_engine.config.run_config import RunConfig

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


@dataclass(frozen=True, slots=True)
class Training:
    """One run as a job: hands each event to `put`; `done` is called last, whatever happened."""

    config: "RunConfig"
    control: Control
    folder: Path
    resume: bool
    put: Callable[[Event], None]
    done: Callable[[], None]

    def __call__(self) -> None:
        """Train; called on the engine thread."""
        try:
            self._train()
        except BaseException as error:  # an import that fails, or a consumer
            self.put(
                RunFailed(
                    step=0,
                    error=type(error).__name__,
                    message=str(error),
                    traceback="" if isinstance(error, EngineError) else traceback.format_exc(),
                )
            )
        finally:
            self.done()

    def _train(self) -> None:
        from grpo_engine.trainer import run

        for event in run(self.config, self.control, folder=self.folder, resume=self.resume):
            self.put(event)
