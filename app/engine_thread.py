"""The engine's one thread: all of MLX happens on it; events leave it in order."""

import threading
import traceback
from collections.abc import Callable
from pathlib import Path

from grpo_engine.config import RunConfig
from grpo_engine.control import Control
from grpo_engine.events import Event, RunFailed


class EngineThread(threading.Thread):
    """Runs one run and hands each event to `put`; `done` is called last, whatever happened."""

    def __init__(
        self,
        config: RunConfig,
        control: Control,
        folder: Path,
        *,
        resume: bool,
        put: Callable[[Event], None],
        done: Callable[[], None],
        niceness: int = 0,
    ) -> None:
        super().__init__(name="engine", daemon=True)
        self._config, self._control, self._folder = config, control, folder
        self._resume, self._put, self._done, self._niceness = resume, put, done, niceness

    def run(self) -> None:
        try:
            self._train()
        except BaseException as error:  # an import that fails, or a consumer
            self._put(
                RunFailed(
                    step=0,
                    error=type(error).__name__,
                    message=str(error),
                    traceback=traceback.format_exc(),
                )
            )
        finally:
            self._done()

    def _train(self) -> None:
        from grpo_engine.platform import enter_engine

        enter_engine(self._niceness)
        from grpo_engine.trainer import run

        for event in run(self._config, self._control, folder=self._folder, resume=self._resume):
            self._put(event)
