"""The thread that uses MLX: the one that first calls the engine, for as long as the process lives.

MLX keeps its stream, its random key and its compiled functions for each thread, and users' own MLX
code runs in the thread of their cells.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from grpo_engine.control import Control
from grpo_engine.errors import EngineError

STOPPING = (
    "stopping after this step, with a checkpoint; interrupt again to stop now",
    "stopping now; the last checkpoint stays as it is",
)
_owner: threading.Thread | None = None


def enter() -> None:
    """Make the calling thread the one that uses MLX; refuse every other one."""
    global _owner
    current = threading.current_thread()
    if _owner is None:
        from grpo_engine.platform import device
        from grpo_engine.setup.startup import enter_engine

        enter_engine(0)
        device.require_open_files()
        _owner = current
    elif _owner is not current:
        raise EngineError(
            f"the engine was first used in thread {_owner.name!r} and this is {current.name!r}: "
            "MLX belongs to one thread of a process; call grpo_engine always from the same one"
        )


class Interrupts:
    """Handles Ctrl-C while a run trains: stop after the step, then now, then by exception."""

    def __init__(self, control: Control, write: Callable[[str], None]) -> None:
        self._control, self._write = control, write
        self._count = 0

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle interrupts within the block; only the main thread can."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, self._interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        self._count += 1
        if self._count > len(STOPPING):
            raise KeyboardInterrupt
        self._control.ask("stop_after_step" if self._count == 1 else "stop_now")
        self._write(STOPPING[self._count - 1])
