"""The bridge between the engine thread and the workbench: record first, show second.

Everything slow happens on the engine thread, the opening of the recorder included. What the
workbench is told comes through `tell`, which must be safe to call from any thread.
"""

import traceback
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from textual.message import Message

from app.feed.feed import NOTHING_MUTED, LiveFeed
from app.jobs.engine_thread import EngineThread, Training
from app.tui.messages import EngineEnded, LaunchRefused, RunBegan
from grpo_engine import events as ev
from grpo_engine.control import Control

if TYPE_CHECKING:
    from experiments.record.recorder import Recorder
    from experiments.record.recording import RunHandle

NICENESS = 10

Tell = Callable[[Message], Any]


class Bridge:
    """At most one run at a time in this process."""

    def __init__(self, store: Path, tell: Tell) -> None:
        self._store = store
        self._tell = tell
        self._engine: EngineThread | None = None
        self.control: Control | None = None
        self.run = ""
        self.name = ""

    @property
    def running(self) -> bool:
        """Whether a run goes on in this process."""
        return self.control is not None

    def launch(self, config: Any, parent: str = "") -> None:
        """Start a new run; returns at once."""
        control = Control()
        self._submit(control, lambda: self._begin(config, parent, control))

    def resume(self, ref: str) -> None:
        """Go on with a stored run; returns at once."""
        control = Control()
        self._submit(control, lambda: self._begin_again(ref, control))

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the engine thread to do all it was given, and say whether it has."""
        if self._engine is None:
            return True
        self._engine.finish()
        self._engine.join(seconds)
        return not self._engine.is_alive()

    def _submit(self, control: Control, work: Callable[[], None]) -> None:
        self.control = control
        if self._engine is None:
            self._engine = EngineThread(NICENESS)
            self._engine.start()
        self._engine.submit(lambda: self._guarded(work))

    # -- on the engine thread ---------------------------------------------------------------

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self.control = None
            text = " ".join(str(error).split()) or type(error).__name__
            self._tell(LaunchRefused(text))
        except BaseException:
            self.control = None
            self._tell(EngineEnded(self.run, "the engine thread died", traceback.format_exc()))
            raise

    def _begin(self, config: Any, parent: str, control: Control) -> None:
        from experiments.record.recorder import Recorder
        from grpo_engine.config.settings import build
        from grpo_engine.versions import versions

        config = build(config) if isinstance(config, dict) else config
        recorder = Recorder(self._store)
        with ExitStack() as stack:
            stack.callback(recorder.close)
            handle = recorder.start_run(
                config, name=config.name, control=control, parent=parent or None,
                code_version=versions().get("grpo-tui", ""),
            )  # fmt: skip
            stack.pop_all()
        self._train(config, handle, recorder, control, resume=False)

    def _begin_again(self, ref: str, control: Control) -> None:
        from experiments.db.paths import run_folder
        from experiments.reader import StoreReader
        from experiments.record.recorder import Recorder
        from grpo_engine.config.settings import build
        from grpo_engine.run.checkpoint import newest_step

        recorder = Recorder(self._store)
        with ExitStack() as stack:
            stack.callback(recorder.close)
            with closing(StoreReader(self._store)) as reader:
                stored = reader.run(recorder.store.key_of(ref))
                muted = reader.muted_alerts(stored.summary.key)
            config = build(stored.config, f"run {stored.summary.id}")
            folder = run_folder(self._store, stored.summary.id)
            handle = recorder.resume_run(ref, from_step=newest_step(folder), control=control)
            stack.pop_all()
        self._train(config, handle, recorder, control, resume=True, muted=muted)

    def _train(
        self, config: Any, handle: "RunHandle", recorder: "Recorder", control: Control, *,
        resume: bool, muted: frozenset[str] = NOTHING_MUTED,
    ) -> None:  # fmt: skip
        from app.jobs.run_log import RunLog, fault_log

        self.run, self.name = handle.id, handle.name
        log = RunLog(handle.folder)
        ended: list[ev.Event] = []

        def put(event: ev.Event) -> None:
            handle.put(event)
            log.write(event)
            if isinstance(event, ev.RunFinished | ev.RunFailed):
                ended.append(event)

        feed = LiveFeed(handle, control, muted)
        self._tell(RunBegan(feed))
        with fault_log(handle.folder):
            Training(config, control, handle.folder, resume, put=put, done=lambda: None)()
        failure = ended[-1] if ended and isinstance(ended[-1], ev.RunFailed) else None
        handle.close(failure.message if failure else "")
        recorder.close()
        log.close()
        self.control = None
        self._tell(
            EngineEnded(handle.id, f"{failure.error}: {failure.message}", failure.traceback)
            if failure is not None
            else EngineEnded(handle.id)
        )
