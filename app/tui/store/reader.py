"""The reader thread: the app's one permanent connection to the store, used from the UI thread."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from textual.screen import Screen

from grpo_engine.errors import EngineError
from grpo_tui.experiments.errors import StoreError

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader

FIRST_FRAME_S = 1.0  # a terminal that draws later reads the store meanwhile

T = TypeVar("T")


@contextmanager
def reporting(screen: Screen[Any]) -> Iterator[None]:
    """Report what cannot be read or computed; end quietly if it is no longer needed."""
    try:
        yield
    except (EngineError, StoreError) as error:
        screen.notify(str(error), severity="error", markup=False)
    except (asyncio.CancelledError, InterruptedError):
        return


@dataclass(slots=True)
class _Job:
    key: str
    call: "Callable[[StoreReader], Any]"
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Any]"
    dropped: bool = False


class ReaderThread:
    """Run store queries one after another, off the UI thread."""

    def __init__(self, path: Path, warn: Callable[[str], None] = lambda _: None) -> None:
        self.path = path
        self._warn = warn  # on the loop of the query, once for each damaged run
        self._warned: set[str] = set()
        self.first_frame = threading.Event()  # only then is the database's library loaded
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._latest: dict[str, _Job] = {}
        self._running: _Job | None = None
        self._reader: StoreReader | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    async def ask(self, call: "Callable[[StoreReader], T]", key: str = "") -> T:
        """Return what `call` returns; a later query with the same key cancels this one.

        Raises what `call` raises, or `asyncio.CancelledError` if it was cancelled.
        """
        loop = asyncio.get_running_loop()
        job = _Job(key, call, loop, loop.create_future())
        with self._lock:
            if key:
                old = self._latest.get(key)
                if old is not None and not old.future.done():
                    old.dropped = True
                    old.future.cancel()
                    if self._running is old and self._reader is not None:
                        self._reader.interrupt()
                self._latest[key] = job
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="reader", daemon=True)
                self._thread.start()
        self._jobs.put(job)
        result: T = await job.future
        return result

    def close(self) -> None:
        """Stop the thread after the current query."""
        self.first_frame.set()
        if self._thread is not None:
            if self._reader is not None:
                self._reader.interrupt()
            self._jobs.put(None)
            self._thread.join(2.0)

    def _open(self) -> "StoreReader":
        self.first_frame.wait(FIRST_FRAME_S)
        from grpo_tui.experiments.reader import StoreReader

        return StoreReader(self.path)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            if job.dropped:
                continue
            with self._lock:
                self._running = job
            try:
                if self._reader is None:
                    self._reader = self._open()
                outcome, value = True, job.call(self._reader)
            except Exception as error:  # raised again where it was asked
                outcome, value = False, error
            with self._lock:
                self._running = None
            if not job.loop.is_closed():
                job.loop.call_soon_threadsafe(_settle, job.future, outcome, value)
                self._warn_of_damage(job.loop)
        if self._reader is not None:
            self._reader.close()

    def _warn_of_damage(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._reader is None:
            return
        with suppress(StoreError, InterruptedError):
            damaged = self._reader.damaged()
            for run in damaged.keys() - self._warned:
                self._warned.add(run)
                loop.call_soon_threadsafe(self._warn, damaged[run])


def _settle(future: "asyncio.Future[Any]", good: bool, value: Any) -> None:
    if future.done():
        return
    if good:
        future.set_result(value)
    else:
        future.set_exception(value)
