"""An event loop in a thread of its own, so that connections outlive a call."""

import asyncio
import threading
from collections.abc import Awaitable
from typing import Any

from grpo_engine.sandbox.report import TooLateError


async def _limited(awaitable: Awaitable[Any], limit: float) -> Any:
    try:
        async with asyncio.timeout(limit) as timeout:
            return await awaitable
    except TimeoutError:
        if timeout.expired():
            raise TooLateError from None
        raise
    except SystemExit as error:  # it would end the loop
        raise RuntimeError(f"called sys.exit({error.code!r})") from None


class EventLoop:
    """Runs awaitables for other threads; starts with the first one."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()

    def wait(self, awaitable: Awaitable[Any], limit: float) -> Any:
        """Wait for an awaitable's value, or raise TooLateError after `limit` seconds."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
                self._thread.start()
        return asyncio.run_coroutine_threadsafe(_limited(awaitable, limit), self._loop).result()

    def close(self) -> None:
        """Cancel what is awaited, and end the thread unless it hangs."""
        if (loop := self._loop) is None:
            return

        async def cancel() -> None:
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            loop.call_soon(loop.stop)

        asyncio.run_coroutine_threadsafe(cancel(), loop)
        self._thread.join(1.0)
        if not self._thread.is_alive():
            loop.close()
