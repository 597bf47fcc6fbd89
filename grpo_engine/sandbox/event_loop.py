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
    """Runs awaitables for other threads."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self._runner:  # cancels what is awaited at the end
            self._loop.run_forever()

    def wait(self, awaitable: Awaitable[Any], limit: float) -> Any:
        """Wait for an awaitable's value, or raise TooLateError after `limit` seconds."""
        return asyncio.run_coroutine_threadsafe(_limited(awaitable, limit), self._loop).result()

    def close(self) -> None:
        """End the thread, unless it hangs."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(1.0)
