"""Textual's terminal driver for a terminal that may go away: nothing fails or blocks on it then.

Textual's writer thread ends with the first failed write, and the event loop waits for it for ever
once its queue is full; a lost terminal would freeze the app and burn a core reading nothing.
"""

import threading
from typing import IO, Any

from textual.drivers.linux_driver import LinuxDriver

from app import leaving

LOOK_EVERY = 0.5  # seconds


class Sink:
    """A stream that swallows everything after its first failure, and reports that one."""

    def __init__(self, file: IO[str], lost: Any) -> None:
        self._file = file
        self._lost = lost

    def write(self, text: str) -> None:
        """Write as long as there is somebody to read."""
        try:
            self._file.write(text)
        except (OSError, ValueError):
            self._lost()

    def flush(self) -> None:
        """Flush as long as there is somebody to read."""
        try:
            self._file.flush()
        except (OSError, ValueError):
            self._lost()

    def fileno(self) -> int:
        """The number of the real stream."""
        return self._file.fileno()


class SteadyDriver(LinuxDriver):
    """Tells the app once when its terminal is gone; signals are not needed for it."""

    def __init__(self, app: Any, **options: Any) -> None:
        super().__init__(app, **options)
        self._keeper = app
        self._file: Any = Sink(self._file, self._lose)
        self._closed = threading.Event()

    def start_application_mode(self) -> None:
        """Take the terminal, and look from time to time whether it is still there."""
        super().start_application_mode()  # type: ignore[no-untyped-call]
        if self.input_tty:
            threading.Thread(target=self._look, name="terminal", daemon=True).start()

    def close(self) -> None:
        """Give the terminal back."""
        self._closed.set()
        super().close()

    def _look(self) -> None:
        while not self._closed.wait(LOOK_EVERY):
            if leaving.terminal_is_lost():
                self._lose()
                return

    def _lose(self) -> None:
        if self._closed.is_set():
            return
        self._closed.set()
        leaving.go_dark()
        self._loop.call_soon_threadsafe(leaving.lose_terminal, self._keeper)
