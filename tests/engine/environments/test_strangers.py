"""The endpoint of a rollout beside strangers on the same machine, who have no key."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from grpo_engine.environments import endpoint
from grpo_engine.environments.endpoint import Endpoint, Request, response_of
from tests.patience import until

BODY = json.dumps({"messages": [{"role": "user", "content": "hello"}]}).encode()


class Greeting(Endpoint):
    """Answers each request, or when it is let go."""

    def __init__(self) -> None:
        super().__init__({"temperature": 1.0})
        self.waits: asyncio.Event | None = None

    async def respond(self, request: Request) -> Mapping[str, Any]:
        if self.waits:
            await self.waits.wait()
        return response_of(request, "hi", 1, context=1, tokens=1, is_cut=False)


class Served:
    """An endpoint whose event loop has a thread of its own, as in a process of the sandbox."""

    def __init__(self) -> None:
        self.loop, self.endpoint = asyncio.new_event_loop(), Greeting()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        url, self.key = self.run(self.endpoint.open)
        self.port = int(url.split(":")[2].split("/")[0])

    def run(self, function: Callable[[], Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(function(), self.loop).result(60)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def head(self, key: str = "", size: int | str = len(BODY)) -> bytes:
        bearer = f"Authorization: Bearer {key}\r\n" if key else ""
        head = f"POST /v1/chat/completions HTTP/1.1\r\n{bearer}Content-Length: {size}\r\n\r\n"
        return head.encode("latin-1")

    def ask(self) -> bytes:
        """The status of a request with the key."""
        with self.connect() as client:
            client.sendall(self.head(self.key) + BODY)
            return client.recv(4096)[:12]

    @property
    def open(self) -> int:
        return len(self.endpoint._connections)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.endpoint.close)
        until(lambda: not self.open)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.close()


def has_ended(client: socket.socket) -> bool:
    with suppress(ConnectionError):
        while client.recv(1 << 16):
            pass
    return True


def test_a_body_of_8_mb_without_the_key_is_not_taken(served: Served) -> None:
    with served.connect() as client:
        client.sendall(served.head("guess", 8 << 20))
        until(lambda: not served.open)
        with pytest.raises(ConnectionError):
            client.sendall(bytes(8 << 20))
    assert served.ask() == b"HTTP/1.1 200"


def test_of_hundreds_of_idle_connections_few_are_kept_and_the_agent_is_served(
    served: Served,
) -> None:
    with ExitStack() as stack:
        idle = [stack.enter_context(served.connect()) for _ in range(300)]
        until(lambda: served.open == endpoint.MAX_STRANGERS)
        assert all(map(has_ended, idle[: -endpoint.MAX_STRANGERS]))
        assert served.ask() == b"HTTP/1.1 200"


def test_who_sends_headers_slowly_is_ended(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "HEAD_S", 0.4)
    begun = time.monotonic()
    with served.connect() as client:
        with suppress(ConnectionError):
            for byte in served.head() * 99:
                client.send(bytes([byte]))
                time.sleep(0.02)
                if not served.open:
                    break
        assert time.monotonic() - begun < 20
    assert served.ask() == b"HTTP/1.1 200"


@pytest.mark.parametrize(
    "sent",
    [b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 9999, b"x" * (1 << 20), b"\0" * 40_000],
    ids=["many headers", "one line", "zeros"],
)
def test_headers_without_an_end_are_refused(served: Served, sent: bytes) -> None:
    with served.connect() as client:
        with suppress(ConnectionError):
            client.sendall(sent)
        assert has_ended(client)
    until(lambda: not served.open)
    assert served.ask() == b"HTTP/1.1 200"


def test_a_body_that_does_not_come_is_not_waited_for(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "BODY_S", 0.2)
    with served.connect() as client:
        client.sendall(served.head(served.key) + BODY[:-1])
        assert client.recv(4096).startswith(b"HTTP/1.1 408 ")


def test_only_so_many_requests_with_the_key_are_served_at_once(served: Served) -> None:
    served.endpoint.waits = asyncio.Event()
    with ExitStack() as stack:
        clients = [stack.enter_context(served.connect()) for _ in range(endpoint.MAX_SERVED)]
        for client in clients:
            client.sendall(served.head(served.key) + BODY)
        until(lambda: served.open == endpoint.MAX_SERVED)
        assert served.ask() == b"HTTP/1.1 429"
        served.loop.call_soon_threadsafe(served.endpoint.waits.set)
        assert {client.recv(12) for client in clients} == {b"HTTP/1.1 200"}


def test_the_end_of_a_rollout_ends_its_connections(served: Served) -> None:
    served.endpoint.waits = asyncio.Event()
    with served.connect() as idle, served.connect() as asking:
        asking.sendall(served.head(served.key) + BODY)
        until(lambda: served.open == 2)
        served.loop.call_soon_threadsafe(served.endpoint.close)
        assert all(map(has_ended, (idle, asking)))
    with pytest.raises(ConnectionRefusedError):
        served.connect()


CHAT = "POST /v1/chat/completions HTTP/1.1"


def request(key: str, first: str = CHAT, *, length: int | str | None = None, **body: Any) -> bytes:
    data = json.dumps({**json.loads(BODY), **body})
    headers = (
        f"Authorization: Bearer {key}\r\nContent-Length: {len(data) if length is None else length}"
    )
    return f"{first}\r\n{headers}\r\n\r\n{data}".encode("latin-1")


@pytest.mark.parametrize(
    ("change", "status"),
    [
        *(
            ({"length": text}, 400)
            for text in ("8388609", "-1", "1_0", "9" * 5000, "\u00b2", "10, 10")
        ),
        ({"key": "other"}, 401),
        ({"key": ""}, 401),
        ({"key": "h\u00e9"}, 401),
        ({"first": "OPTIONS /v1/chat/completions HTTP/1.1"}, 404),
        ({"first": "POST /v1/embeddings HTTP/1.1"}, 404),
        ({"first": "hello"}, 400),
        ({"first": f"{CHAT}\r\nTransfer-Encoding: chunked"}, 400),
        ({"temperature": 0}, 400),
        ({}, 200),
        ({"first": "GET /v1/models HTTP/1.1"}, 200),
        ({"stream": True}, 200),
    ],
    ids=str,
)
def test_only_the_program_of_a_rollout_is_served(
    served: Served, change: dict[str, Any], status: int
) -> None:
    with served.connect() as client:
        client.sendall(request(**{"key": served.key, **change}))
        head, _, body = client.makefile("rb").read().partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode())
    assert served.key.encode() not in head + body
    if "stream" in change:
        assert b"Content-Type: text/event-stream" in head
        assert body.endswith(b"data: [DONE]\n\n")
    elif status == 200:
        reply = json.loads(body)
        assert reply["data"][0]["id"] == "policy" if "first" in change else reply["choices"]
    else:
        assert [*json.loads(body)["error"]] == ["message", "type", "param", "code"]


@pytest.mark.parametrize(
    "more",
    [
        {"n": "9" * 1_000_000},
        {"logit_bias": {"x" * 1_000_000: 1}},
        {"max_tokens": "9" * 1_000_000},
        {"messages": [{"role": "r" * 1_000_000}]},
    ],
    ids=lambda more: next(iter(more)),
)
def test_a_refusal_does_not_repeat_a_value_of_a_megabyte(more: Any) -> None:
    body = json.dumps({**json.loads(BODY), **more}).encode()
    with pytest.raises(endpoint.RequestRefusedError) as refused:
        endpoint.read_request(body, {})
    assert len(str(refused.value)) < 1000
