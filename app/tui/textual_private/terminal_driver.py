"""Textual's terminal driver, which neither fails nor blocks when the terminal goes away.

Textual's writer thread ends with the first failed write, and the event loop waits for it forever
once its queue is full; a lost terminal would freeze the app and keep a core busy reading nothing.
"""

import os
import select
import threading
from codecs import getincrementaldecoder
from typing import IO, Any

from textual import constants
from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver

from app.tui import terminal

CHECK_EVERY, IDLE_S = 0.5, 0.1  # seconds


class FailsafeStream:
    """A stream whose failures are reported and never raised."""

    def __init__(self, file: IO[str], lost: Any) -> None:
        self._file = file
        self._lost = lost

    def write(self, text: str) -> None:
        """Write, or report a failure."""
        try:
            self._file.write(text)
        except (OSError, ValueError):
            self._lost()

    def flush(self) -> None:
        """Flush, or report a failure."""
        try:
            self._file.flush()
        except (OSError, ValueError):
            self._lost()

    def fileno(self) -> int:
        """The number of the real stream."""
        return self._file.fileno()


class TerminalDriver(LinuxDriver):
    """Tells the app once that its terminal is gone, without relying on signals."""

    def __init__(self, app: Any, **options: Any) -> None:
        super().__init__(app, **options)
        self._workbench = app
        self._file: Any = FailsafeStream(self._file, self._lose)
        self._closed = threading.Event()

    def start_application_mode(self) -> None:
        """Take the terminal, and check from time to time that it is still there."""
        super().start_application_mode()  # type: ignore[no-untyped-call]
        if self.input_tty:
            threading.Thread(target=self._check, name="terminal", daemon=True).start()

    def run_input_thread(self) -> None:
        """Read keys; a lone escape counts as a key as soon as its wait is over.

        Textual's own loop checks for that only every tenth of a second.
        """
        parser = XTermParser(self._debug)
        decoder = getincrementaldecoder("utf-8")("replace")
        while not self.exit_event.is_set():
            begun = parser._timeout_time is not None  # an escape that may begin a sequence
            wait = constants.ESCAPE_DELAY if begun else IDLE_S
            if select.select([self.fileno], [], [], wait)[0]:
                data = os.read(self.fileno, 4096)
                if not data:
                    return
                for event in parser.feed(decoder.decode(data)):
                    self.process_message(event)
            for event in parser.tick():
                self.process_message(event)

    def close(self) -> None:
        """Give the terminal back."""
        self._closed.set()
        super().close()

    def _check(self) -> None:
        while not self._closed.wait(CHECK_EVERY):
            if terminal.is_lost():
                self._lose()
                return

    def _lose(self) -> None:
        if self._closed.is_set():
            return
        self._closed.set()
        terminal.discard_output()
        self._loop.call_soon_threadsafe(self._workbench.lose_terminal)
