"""The bridge between the engine thread and the workbench: record first, show second.

Everything slow happens on the engine thread, including opening the recorder. `post` passes messages
to the workbench and must be thread-safe.
"""

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from textual.message import Message

from grpo_engine import events as ev
from grpo_engine.control import Control
from grpo_tui.app.feed.stored import LiveFeed
from grpo_tui.app.jobs.engine_thread import EngineThread
from grpo_tui.app.tui.messages import EngineEnded, LaunchRefused, RunBegan

if TYPE_CHECKING:
    from grpo_engine.config.settings import RunConfig
    from grpo_tui.app.jobs.start import Job

    Prepare = Callable[[Any, Control], Job]  # what is called on the module that prepares runs

NICENESS = 10

Post = Callable[[Message], Any]


class Bridge:
    """Runs at most one training run at a time in this process."""

    def __init__(self, store: Path, post: Post) -> None:
        self._store = store
        self._post = post
        self._engine: EngineThread | None = None
        self.control: Control | None = None
        self.run = ""
        self.name = ""

    @property
    def running(self) -> bool:
        """Whether a run is training in this process."""
        return self.control is not None

    def launch(self, config: "RunConfig", parent: str = "", *, tried: bool = False) -> None:
        """Start a new run and return at once; its settings are tried first, unless they were."""
        self._submit(
            lambda start, control: (start.new_job if tried else start.tried_job)(
                config, self._store, parent=parent, control=control
            )
        )

    def resume(self, ref: str) -> None:
        """Resume a stored run and return at once."""
        self._submit(lambda start, control: start.resumed_job(ref, self._store, control=control))

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the engine thread to finish its work; return whether it did."""
        if self._engine is None:
            return True
        self._engine.finish()
        self._engine.join(seconds)
        return not self._engine.is_alive()

    def _submit(self, prepare: "Prepare") -> None:
        control = self.control = Control()
        if self._engine is None:
            self._engine = EngineThread(NICENESS)
            self._engine.start()
        self._engine.submit(lambda: self._guarded(prepare, control))

    # -- on the engine thread ---------------------------------------------------------------

    def _guarded(self, prepare: "Prepare", control: Control) -> None:
        try:
            from grpo_tui.app.jobs import start

            self._train(prepare(start, control))
        except Exception as error:  # told on the screen; the engine thread lives on
            self.control = None
            self._post(LaunchRefused(error))
        except BaseException:
            self.control = None
            self._post(EngineEnded("the engine thread died", traceback.format_exc()))
            raise

    def _train(self, job: "Job") -> None:
        from grpo_tui.app.jobs.run_log import RunLog, fault_log

        assert job.recorder is not None
        self.run, self.name = job.recorder.id, job.name
        log = RunLog(job.folder)
        failed: list[ev.RunFailed] = []

        def show(event: ev.Event) -> None:
            log.write(event)
            if isinstance(event, ev.RunFailed):
                failed.append(event)

        self._post(RunBegan(LiveFeed(job.recorder, job.control)))
        with fault_log(job.folder):
            job.train(show)
        failure = failed[-1] if failed else None
        job.close(failure.message if failure else "")
        log.close()
        self.control = None
        self._post(
            EngineEnded(f"{failure.error}: {failure.message}", failure.traceback)
            if failure is not None
            else EngineEnded()
        )
