"""Textual's terminal driver, made to survive the loss of the terminal.

Textual's writer thread ends at the first failed write. Once its queue is full, the event loop waits
for it forever. A lost terminal would freeze the app and keep a core busy with empty reads.
"""

import os
import select
import threading
from codecs import getincrementaldecoder
from typing import IO, Any

from textual import constants
from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver

from grpo_tui.app.tui import terminal

CHECK_EVERY, IDLE_S = 0.5, 0.1  # seconds


class FailsafeStream:
    """A stream that reports failures to a callback and never raises them."""

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
        """The real stream's file descriptor."""
        return self._file.fileno()


class TerminalDriver(LinuxDriver):
    """Tells the app once that its terminal is gone, without relying on signals."""

    def __init__(self, app: Any, **options: Any) -> None:
        super().__init__(app, **options)
        self._workbench = app
        self._file: Any = FailsafeStream(self._file, self._lose)
        self._closed = threading.Event()

    def start_application_mode(self) -> None:
        """Set up the terminal, and check regularly that it still exists."""
        super().start_application_mode()  # type: ignore[no-untyped-call]
        if self.input_tty:
            threading.Thread(target=self._check, name="terminal", daemon=True).start()

    def run_input_thread(self) -> None:
        """Read keys; deliver a lone escape as a key as soon as its timeout has passed.

        Textual's own loop checks for the timeout only every tenth of a second.
        """
        parser = XTermParser(self._debug)
        decoder = getincrementaldecoder("utf-8")("replace")
        while not self.exit_event.is_set():
            begun = parser._timeout_time is not None  # an escape that may start a sequence
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
        """Restore the terminal."""
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
