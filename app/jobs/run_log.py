"""A run's own log files: `log.txt` in plain lines, `faults.txt` for native crashes."""

import faulthandler
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from grpo_engine.events import Event, RunFailed
from grpo_tui.app.jobs.progress import RunProgress, line_of
from grpo_tui.app.text.safe_text import safe
from grpo_tui.experiments.db.paths import fault_file, log_file


class RunLog:
    """The file `log.txt`: a line for each event except progress."""

    def __init__(self, folder: Path) -> None:
        self._file = log_file(folder).open("a", encoding="utf-8")
        self._progress = RunProgress()

    def write(self, event: Event) -> None:
        """Write a line for the event with its time; a failure with its traceback."""
        self._progress.add(event)
        text = line_of(event, self._progress)
        if not text:
            return
        now = datetime.now(UTC).isoformat(timespec="seconds")
        with suppress(OSError):  # a full disk must not end the run
            self._file.write(f"{now}  {safe(text)}\n")
            if isinstance(event, RunFailed) and event.traceback:
                self._file.write(event.traceback)
            self._file.flush()

    def close(self) -> None:
        with suppress(OSError):
            self._file.close()


@contextmanager
def fault_log(folder: Path) -> Iterator[None]:
    """Make a process that dies by a signal dump its stacks to the file."""
    with fault_file(folder).open("a", encoding="utf-8") as file:
        faulthandler.enable(file)
        try:
            yield
        finally:
            faulthandler.disable()
