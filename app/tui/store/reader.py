"""The reader thread: the app's one permanent connection to the store, used from the UI thread."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from textual.screen import Screen

from grpo_engine.errors import EngineError
from grpo_tui.experiments.errors import StoreError

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader

FIRST_FRAME_S = 1.0  # a terminal that draws later reads the store meanwhile
INTERRUPT_S = 0.01  # between interrupts: one that comes between two statements has no effect

T = TypeVar("T")


@contextmanager
def reporting(screen: Screen[Any]) -> Iterator[None]:
    """Report what cannot be read or computed; end quietly if it is no longer needed."""
    try:
        yield
    except (EngineError, StoreError) as error:
        screen.notify(str(error), severity="error")
    except (asyncio.CancelledError, InterruptedError):
        return


class ReaderThread:
    """Run store queries one after another, off the UI thread."""

    def __init__(self, path: Path, warn: Callable[[str], None] = lambda _: None) -> None:
        self.path = path
        self._warn, self._warned = warn, set[str]()  # once for each damaged run
        self._damaged: dict[str, str] = {}
        self.first_frame = threading.Event()  # only then is the database's library loaded
        self._thread = ThreadPoolExecutor(1, "reader")
        self._latest: dict[str, tuple[Future[Any], asyncio.Future[Any]]] = {}
        self._running = ""  # the key of the query that is being answered
        self._closed = False
        self._lock = threading.Lock()
        self._reader: StoreReader | None = None

    async def read(self, call: "Callable[[StoreReader], T]", key: str = "") -> T:
        """Return what `call` returns; a later query with the same key cancels this one.

        Raises what `call` raises, or `asyncio.CancelledError` if it was cancelled.
        """
        if key in self._latest:
            job, future = self._latest[key]
            future.cancel()
            job.cancel()
            with self._lock:
                if self._running == key:
                    self._interrupt()
        job = self._thread.submit(self._call, call, key)
        future = asyncio.wrap_future(job)
        if key:
            self._latest[key] = job, future
        result: T = await future
        for run in self._damaged.keys() - self._warned:
            self._warned.add(run)
            self._warn(self._damaged[run])
        return result

    def close(self) -> None:
        """Stop the thread; the query in progress and those that wait raise InterruptedError."""
        self._closed = True
        self.first_frame.set()
        last = self._thread.submit(bool)
        while wait([last], INTERRUPT_S).not_done:
            self._interrupt()
        self._thread.shutdown()
        if self._reader is not None:
            self._reader.close()

    def _interrupt(self) -> None:
        if self._reader is not None:
            self._reader.interrupt()

    # -- on the thread ----------------------------------------------------------------------

    def _call(self, call: "Callable[[StoreReader], T]", key: str) -> T:
        with self._lock:
            self._running = key
        try:
            if self._reader is None:
                self._reader = self._open()
            if self._closed:
                raise InterruptedError("the program ends")
            result = call(self._reader)
            with suppress(StoreError, InterruptedError):
                self._damaged = self._reader.damaged()
            return result
        finally:
            with self._lock:
                self._running = ""

    def _open(self) -> "StoreReader":
        self.first_frame.wait(FIRST_FRAME_S)
        from grpo_tui.experiments.reader import StoreReader

        return StoreReader(self.path)
