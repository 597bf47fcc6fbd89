"""The recorder: one thread that records the events of runs before anything shows them."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Empty, Full, Queue
from typing import Any

from grpo_engine import events as ev
from grpo_engine.control import Control
from grpo_tui.experiments.db.machine import network_file_system
from grpo_tui.experiments.errors import StoreError, StoreReadOnlyError
from grpo_tui.experiments.processes import environment
from grpo_tui.experiments.record.run_recorder import RunRecorder
from grpo_tui.experiments.record.spill import read_in_all
from grpo_tui.experiments.record.store_file import StoreFile
from grpo_tui.experiments.store import ExperimentStore

POLL_S = 0.2
QUEUE_ITEM = "GRPO_TUI_QUEUE_ITEM"
PARENT = "GRPO_TUI_PARENT"  # the run that the new process's run is a clone of


class Recorder:
    """Records runs in the store at `path`; raises StoreError if it cannot be opened."""

    def __init__(self, path: Path) -> None:
        self.store = ExperimentStore(path)
        if self.store.read_only:
            raise StoreReadOnlyError(self.store.read_only)
        remote = network_file_system(path.parent)
        _, complaints = read_in_all(self.store)
        if remote:
            complaints.append(
                f"{path} is on a network file system ({remote}): "
                "only one process may use it at a time"
            )
        self.warning = "\n".join(complaints)
        self._file = StoreFile(self.store)
        self._queue: Queue[tuple[RunRecorder | None, Any]] = Queue(maxsize=4096)
        self._runs: list[RunRecorder] = []
        self._stop, self._closed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    def start_run(
        self, config: Any, *, name: str = "", control: Control | None = None,
        parent: str | None = None, code_version: str = "", tags: tuple[str, ...] = (),
    ) -> RunRecorder:  # fmt: skip
        """Begin a new run; `config` is a RunConfig or its tree; requests go to `control`."""
        row = self.store.create_run(
            config, name=name, parent=self._parent(parent), code_version=code_version, tags=tags,
            status="lost",  # if this process ends before the first attempt begins
        )  # fmt: skip
        # the queue's worker sets this for its child, whose own children must not inherit it
        if item := os.environ.pop(QUEUE_ITEM, ""):
            from grpo_tui.experiments.queue import RunQueue

            RunQueue(self.store).attach(int(item), row.id)
        return self._begin(row.id, 0, control)

    def _parent(self, parent: str | None) -> int | None:
        if parent:
            return self.store.key_of(parent)
        try:
            return self.store.key_of(left) if (left := os.environ.pop(PARENT, "")) else None
        except StoreError:
            return None  # the parent was deleted while its clone waited

    def resume_run(
        self, run: int | str, *, from_step: int, control: Control | None = None,
        config: Any = None,
    ) -> RunRecorder:  # fmt: skip
        """Begin a new attempt at a stored run; rows after `from_step` are hidden.

        `config` replaces its settings, for a run that continues for more steps.
        """
        return self._begin(self.store.key_of(run), from_step, control, config)

    def _begin(
        self, key: int, from_step: int, control: Control | None, config: Any = None
    ) -> RunRecorder:
        run = RunRecorder(self._file, self._queue, key, control or Control(), from_step, config)
        self._runs.append(run)

        def warn(text: str) -> None:
            if not run.ended:
                step = run.board.snapshot().step or from_step
                run.put(ev.NoteWritten(step=step, text=text, severity="warning"))

        if self.warning:
            warn(self.warning)
        for tracker in run.parts.trackers:
            start_tracker(tracker, self.store.path, run.id, from_step or -1, warn)
        return run

    def close(self) -> None:
        """End all runs; while events of one wait for the store, the thread goes on trying."""
        if not self._stop.is_set():
            self._stop.set()
            with suppress(Full):
                self._queue.put_nowait((None, None))
            self._closed.wait()

    @property
    def path(self) -> Path:
        """The store's current path; it differs from the original if the file was replaced."""
        return self.store.path

    # -- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        next_poll = time.monotonic()
        while True:
            try:
                run, entry = self._queue.get(timeout=POLL_S)
            except Empty:
                if self._stop.is_set():
                    break
            else:
                if run is None:
                    break
                self._guarded(run, partial(run.process, entry))
            if time.monotonic() >= next_poll:
                next_poll = time.monotonic() + POLL_S
                self._poll()
        for run in list(self._runs):
            self._guarded(run, partial(run.end, "the recorder was closed"))
        while not all(run.closed for run in self._runs):
            self._closed.set()
            time.sleep(POLL_S)
            self._poll()
        self._file.close()
        self._closed.set()

    def _poll(self) -> None:
        if note := self._file.rescue():
            for run in self._runs:
                run.note(note)
        for run in list(self._runs):
            if not run.closed:
                self._guarded(run, run.poll)
            if run.closed:
                self._runs.remove(run)

    def _guarded(self, run: RunRecorder, act: Callable[[], None]) -> None:
        """Catch any error in recording one run: it must end neither this thread nor the run."""
        try:
            act()
        except Exception as error:
            run.failed(error)


def recorded(path: Path, begin: Callable[[Recorder], RunRecorder]) -> tuple[Recorder, RunRecorder]:
    """Open a recorder and record of a run; close it again if the run cannot begin."""
    recorder = Recorder(path)
    try:
        return recorder, begin(recorder)
    except BaseException:
        recorder.close()
        raise


def start_tracker(
    tracker: str, store: Path, run: str, after: int, warn: Callable[[str], None]
) -> None:
    """Start a tracker in a process that reads the store, so that it cannot delay or end the run.

    `warn` is called if it fails.
    """
    process = subprocess.Popen(
        [
            sys.executable,
            "-P",
            "-m",
            "grpo_tui.experiments.export.follow",
            store,
            run,
            tracker,
            str(after),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env=environment(),
    )

    def wait() -> None:
        output = process.communicate()[1].decode(errors="replace").split("\n")
        if status := process.returncode:
            reason = next((line for line in reversed(output) if line.strip()), "")
            end = f"signal {-status}" if status < 0 else f"status {status}"
            warn(
                f"{tracker} ended with {end}{': ' if reason else ''}{reason.strip()}; "
                f"the run continues, and `grpo-tui export {run} --format {tracker} --out FOLDER` "
                "writes all of it"
            )

    threading.Thread(target=wait, name=f"tracker {tracker}", daemon=True).start()
