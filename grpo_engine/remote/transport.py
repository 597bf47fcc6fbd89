"""The SDK's requests: bounded in size, without redirects, and their failures counted by call.

The SDK asks again for a result as long as the server answers with errors, without an end and, after
an error 500, without a pause. Here pauses grow, and a call that only failed for minutes is ended.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Final, TypeVar

import httpx

from grpo_engine.errors import EngineError
from grpo_engine.remote.protocol import ServiceRefusedError, ServiceUnavailableError

LARGEST_REPLY: Final = 256 << 20
PATIENCE: Final = 300.0  # seconds during which a call may only fail
FIRST_PAUSE: Final = 0.5  # doubled with each further failure
LONGEST_PAUSE: Final = 30.0
T = TypeVar("T")
POLL: Final = "/retrieve_future"  # the SDK's question for a result


class Call:
    """A call that the SDK works on: its failures since the last answer, and what ends it early."""

    def __init__(self) -> None:
        self.error = asyncio.get_running_loop().create_future()
        self.failures = 0
        self._since = 0.0

    def failed(self, problem: str) -> None:
        now = time.monotonic()
        self._since = self._since if self.failures else now
        self.failures += 1
        if now - self._since >= PATIENCE:
            waited = f"{self.failures} times in {PATIENCE / 60:.3g} minutes"
            self.end(ServiceUnavailableError(f"it {problem}, {waited}"))

    def answered(self) -> None:
        self.failures = 0

    def end(self, error: EngineError) -> None:
        if not self.error.done():
            self.error.set_exception(error)

    async def result_of(self, work: Callable[[], Awaitable[T]]) -> T:
        """The result of the work, unless the call is ended before."""
        CURRENT.set(self)
        task = asyncio.ensure_future(work())
        try:
            await asyncio.wait({task, self.error}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                self.error.result()
            return task.result()
        finally:
            task.cancel()
            if not self.error.cancel():
                self.error.exception()  # asyncio reports errors that nobody has read


CURRENT: ContextVar[Call | None] = ContextVar("current", default=None)


class Opened:
    """The clients of a session, which the SDK does not close, and the loop that they belong to."""

    def __init__(self) -> None:
        self._clients: set[httpx.AsyncClient] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    def add(self, client: httpx.AsyncClient) -> None:
        self._clients.add(client)
        self._loop = asyncio.get_running_loop()

    def close(self, limit: float) -> None:
        """Close them, from another thread."""

        async def closing() -> None:
            for client in self._clients:
                await client.aclose()

        if self._loop is not None:
            with suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(closing(), self._loop).result(limit)


OPENED: ContextVar[Opened] = ContextVar("opened")
_last_answers: dict[str, float] = {}  # by server; heartbeats are answered while a call waits


async def send(self: httpx.AsyncClient, request: httpx.Request, **options: Any) -> httpx.Response:
    """Send as the SDK's client does, for the call that this is part of."""
    OPENED.get().add(self)
    call, polls = CURRENT.get(), request.url.path.endswith(POLL)
    request.headers["Accept-Encoding"] = "identity"
    if call and call.error.done() and not call.error.cancelled():
        await call.error  # the SDK may hear that it has ended only after its own pause
    try:
        response = await _answer(self, request, options.get("auth"), call)
    except httpx.ReadTimeout:
        if not polls:
            _count(call, "gave no answer in time")
            raise
        if time.monotonic() - _last_answers.get(request.url.host, 0) > PATIENCE:
            _count(call, "gave no answer at all")
        return httpx.Response(408, json={}, request=request)  # the SDK asks again at once
    except httpx.TransportError as error:
        _count(call, f"cannot be reached ({type(error).__name__}: {error})")
        raise
    status = response.status_code
    _last_answers[request.url.host] = time.monotonic()
    if status < 500 and status != httpx.codes.TOO_MANY_REQUESTS:
        if call:
            call.answered()
    else:
        _count(call, f"answered {status} {response.reason_phrase}")
        if call and polls:
            pause = FIRST_PAUSE * 2 ** min(call.failures - 1, 10)
            await asyncio.sleep(min(pause, LONGEST_PAUSE))
    return response


async def _answer(
    client: httpx.AsyncClient, request: httpx.Request, auth: Any, call: Call | None
) -> httpx.Response:
    response = await httpx.AsyncClient.send(
        client, request, auth=auth, stream=True, follow_redirects=False
    )
    data = bytearray()
    try:
        async for part in response.aiter_bytes():
            data += part
            if len(data) > LARGEST_REPLY:
                problem = f"sent an answer of more than {LARGEST_REPLY >> 20} MB"
                if call:
                    call.end(ServiceRefusedError(problem))
                raise httpx.ReadError(problem, request=request)
    finally:
        await response.aclose()
    headers = [
        (name, value)
        for name, value in response.headers.multi_items()
        if name.lower() not in ("content-encoding", "content-length", "transfer-encoding")
    ]
    return httpx.Response(
        response.status_code, headers=headers, content=bytes(data), request=request
    )


def _count(call: Call | None, problem: str) -> None:
    if call:
        call.failed(problem)


# The SDK's client is replaced by this one.
HttpClient: Any = type("HttpClient", (httpx.AsyncClient,), {"send": send})
