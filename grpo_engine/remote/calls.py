"""Waits for a server's answers, handles the user's requests meanwhile, and repeats what it may."""

import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, wait
from typing import Final, TypeVar

from grpo_engine.control import Control
from grpo_engine.events import Event, ServerAwaited, warning
from grpo_engine.remote.protocol import ServiceError, ServiceUnavailableError
from grpo_engine.run.backend import StepContext

POLL_S: Final = 0.05  # between checks of the user's requests
PAUSES_S: Final = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)  # before each further attempt
SHOWN_S: Final = 1.0  # seconds after which an awaited answer is named
COMPILES_S: Final = 10.0  # of most answers that a server has no code for yet

T = TypeVar("T")


class Awaited:
    """Says which of a server's answers a run waits for, once that takes long."""

    def __init__(self, step: int, name: str = "") -> None:
        self.step, self.name = step, name
        self.shown, self._since = "", time.monotonic()

    def report(self) -> Iterator[Event]:
        """What changed of that."""
        seconds = time.monotonic() - self._since
        text = f"{self.name} awaited" if self.name and seconds >= SHOWN_S else ""
        if seconds >= COMPILES_S:
            text = "the server may compile"
        if text != self.shown:
            self.shown = text
            yield ServerAwaited(step=self.step, detail=text)

    def answered(self) -> Iterator[Event]:
        """An answer has come."""
        self._since = time.monotonic()
        yield from self.report()


class Calls:
    """The calls of a run to its server, which pause the run where waiting has not helped."""

    def __init__(self, control: Control) -> None:
        self.control = control
        self.attempts = 0  # failed ones since the last that succeeded
        self.failure = ""  # why a call failed that is not made again

    def result(
        self, name: str, call: Callable[[], Future[T]], context: StepContext
    ) -> Generator[Event, None, T]:
        """The result of a call, which is made again as long as the server does not take it."""
        while True:
            try:
                result = yield from until_done(name, call(), context)
            except ServiceUnavailableError as error:
                yield from self.wait(error, context)
            except ServiceError as error:
                self.failure = str(error)
                raise
            else:
                self.attempts = 0
                return result

    def wait(self, error: ServiceUnavailableError, context: StepContext) -> Iterator[Event]:
        """Wait longer after each failure, and after many of them pause the run."""
        if self.attempts == 0:
            yield warning(context.step, f"{error} It is tried again.")
        if self.attempts >= len(PAUSES_S):
            yield warning(context.step, f"{error} The run pauses; `continue` tries again.")
            self.control.ask("pause")
            yield from context.requests()
            self.attempts = 0
            return
        seconds = PAUSES_S[self.attempts]
        self.attempts += 1
        for _ in range(round(seconds / POLL_S)):
            self.control.wait(POLL_S)
            yield from context.requests()


def until_done(name: str, future: Future[T], context: StepContext) -> Generator[Event, None, T]:
    """The result of a future; one that is no longer awaited is cancelled."""
    awaited = Awaited(context.step, name)
    try:
        while not wait([future], POLL_S).done:
            yield from awaited.report()
            yield from context.requests()
        yield from awaited.answered()
    except BaseException:
        future.cancel()
        raise
    return future.result()
