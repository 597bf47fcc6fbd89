"""A real terminal for tests: a pty whose screen can be read."""

import os
import re
import select
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType

import pexpect
import pyte

from tests.patience import PATIENCE, until

ROOT = Path(__file__).resolve().parents[2]

# Opens the workbench on a store and starts a run in it, as New run does.
LAUNCH = """
from grpo_tui.app.guardian import guard

guard()
import json, sys
from pathlib import Path
from grpo_tui.app.tui import app as workbench
from grpo_tui.app.tui.messages import LaunchRequested
from tests.engine.runs import settings

store, world, steps, name = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
changes = json.loads(sys.argv[5]) if len(sys.argv) > 5 else {}

opened = workbench.Workbench.on_mount

async def launch(self):
    await opened(self)
    self.post_message(LaunchRequested(settings(world, steps=steps, name=name, **changes)))

# not a subclass: Textual looks for the file of every class, and this has none
workbench.Workbench.on_mount = launch
sys.exit(workbench.open_workbench(store))
"""

# Prefix that ignores SIGHUP, as some wrappers do.
DEAF = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
"""


class Terminal:
    """A program in a pty; `until` reads its output."""

    def __init__(
        self, arguments: list[str], columns: int = 120, rows: int = 40, folder: Path = ROOT
    ) -> None:
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        environment = {
            **os.environ,
            "TERM": "xterm-256color",
            "COLORTERM": "",
            "PYTHONPATH": str(ROOT),
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "NO_COLOR": "",
        }
        environment.pop("NO_COLOR")
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # compile modules only once
        self.child = pexpect.spawn(
            sys.executable,
            arguments,
            dimensions=(rows, columns),
            env=environment,
            timeout=PATIENCE,
            cwd=str(folder),
        )

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if self.child.closed:
            return
        try:
            self.child.close(force=True)
        except pexpect.ExceptionPexpect:  # killed, but not gone yet on a busy machine
            self.child.wait()

    def text(self) -> str:
        """The current text of the screen."""
        return "\n".join(line.rstrip() for line in self.screen.display)

    def _shows(self, text: str) -> bool:
        return text in self.text()

    def read(self, seconds: float = 0.05) -> bool:
        """Read and draw output; return False at the end of the program."""
        try:
            data = self.child.read_nonblocking(65536, timeout=seconds)
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        self.draw(data)
        return True

    def take(self) -> bytes:
        """Return unread output without drawing it; `draw` puts it on the screen."""
        return os.read(self.child.child_fd, 65536) if self.waiting() else b""

    def draw(self, data: bytes) -> None:
        """Draw output of the program on the screen."""
        self.raw += data
        # pyte does not know some private sequences and would print their ends
        self._stream.feed(data)

    def waiting(self, seconds: float = 0.0) -> bool:
        """Whether unread output arrives within `seconds`."""
        return bool(select.select([self.child.child_fd], [], [], seconds)[0])

    def until(self, holds: Callable[[], bool] | str, seconds: float = PATIENCE) -> None:
        """Read until `holds()` is true, or until the text is on the screen."""
        test = holds if callable(holds) else partial(self._shows, holds)
        end = time.monotonic() + seconds
        while not test():
            alive = self.read()
            if test():
                return
            assert alive, f"the program ended\n{self.text()}"
            assert time.monotonic() < end, f"waited in vain for {holds}\n{self.text()}"

    def until_step(self, step: int) -> None:
        """Read until the top line shows this step or a later one."""

        def reached() -> bool:
            found = re.search(r"step (\d+)/", self.screen.display[0])
            return found is not None and int(found.group(1)) >= step

        self.until(reached)

    def press(self, keys: str) -> None:
        """Type as pexpect does, after a twentieth of a second."""
        self.child.send(keys)

    def press_now(self, keys: str) -> None:
        """Type without a delay."""
        os.write(self.child.child_fd, keys.encode())

    def ended(self, seconds: float = PATIENCE) -> int:
        """Read to the end and return the exit status."""
        end = time.monotonic() + seconds
        while self.read():
            assert time.monotonic() < end, self.text()
        if self.child.isalive():
            self.child.wait()
        status = self.child.exitstatus
        return status if status is not None else -(self.child.signalstatus or 0)

    def lose(self) -> None:
        """Close the terminal under the program, as a dropped connection would."""
        self.child.ptyproc.fileobj.close()
        self.child.closed = self.child.ptyproc.closed = True

    def gone(self) -> None:
        """Wait for the exit of a program whose terminal was lost."""
        until(lambda: os.waitpid(self.child.pid, os.WNOHANG)[0], lambda: "the program goes on")

    def worker(self) -> int:
        """The process that the parent supervises."""
        children = Path(f"/proc/{self.child.pid}/task/{self.child.pid}/children").read_text()
        return int(children.split()[0])

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the supervised process."""
        os.kill(self.worker(), number)
