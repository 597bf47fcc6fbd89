"""What a run says of a server's answers while it waits, and when a call sends nothing more."""

from collections.abc import Iterator
from concurrent.futures import Future

import httpx
import pytest

from grpo_engine.events import Event, ServerAwaited
from grpo_engine.remote import calls, transport
from grpo_engine.remote.calls import Awaited, until_done
from grpo_engine.remote.protocol import ServiceUnavailableError
from grpo_engine.run.backend import StepContext
from tests.engine.policy.helpers import drain


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [0.0]
    monkeypatch.setattr("grpo_engine.remote.calls.time.monotonic", lambda: clock[0])
    return clock


def told(awaited: Awaited) -> list[str]:
    return [event.detail for event in awaited.report() if isinstance(event, ServerAwaited)]


def test_an_answer_is_named_when_it_takes_long_and_a_long_one_may_be_compiled(
    now: list[float],
) -> None:
    awaited, texts = Awaited(3, "gradient"), []
    for seconds in (0.0, 0.9, 1.0, 5.0, 10.0, 60.0):
        now[0] = seconds
        texts.append(told(awaited))
    assert texts == [[], [], ["gradient awaited"], [], ["the server may compile"], []]
    assert list(awaited.answered()) == [ServerAwaited(step=3, detail="")]
    assert list(awaited.answered()) == []


def test_samples_are_counted_elsewhere_and_only_a_long_silence_is_said(now: list[float]) -> None:
    awaited = Awaited(3)
    now[0] = 9.0
    assert told(awaited) == []
    assert list(awaited.answered()) == []  # silence begins again
    now[0] = 18.0
    assert told(awaited) == []
    now[0] = 19.0
    assert told(awaited) == ["the server may compile"]


def test_a_result_that_comes_late_takes_back_what_was_said(
    now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "POLL_S", 0.0)
    future: Future[int] = Future()

    def requests() -> Iterator[Event]:
        now[0] += 4.0
        if now[0] > 8.0:
            future.set_result(7)
        yield from ()

    waiting = until_done("gradient", future, StepContext(step=2, requests=requests))
    events, result = drain(waiting)
    assert result == 7
    assert events == [
        ServerAwaited(step=2, detail="gradient awaited"),
        ServerAwaited(step=2, detail=""),
    ]


async def test_a_call_that_has_ended_sends_nothing_more() -> None:
    received: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        received.append(request.url.path)
        return httpx.Response(200, json={})

    call = transport.Call()
    current, opened = transport.CURRENT.set(call), transport.OPENED.set(transport.Opened())
    try:
        async with transport.HttpClient(transport=httpx.MockTransport(answer)) as client:
            await client.post("http://server/optim_step")
            call.end(ServiceUnavailableError("it cannot be reached"))
            with pytest.raises(ServiceUnavailableError, match="cannot be reached"):
                await client.post("http://server/optim_step")
    finally:
        transport.CURRENT.reset(current)
        transport.OPENED.reset(opened)
    assert received == ["/optim_step"]
