"""The process of a local worker, in a thread of the test."""

import socket
from contextlib import suppress
from threading import Thread

from grpo_engine.distributed.messages import ClosedError, receive, send
from grpo_engine.training.worker import Worker


def test_a_pause_that_comes_after_the_last_row_is_passed_over() -> None:
    """It is not answered: the answer would be taken for that to the next request."""
    engine, other = socket.socketpair()

    def serve() -> None:
        with suppress(ClosedError), other:
            Worker(other, -1, -1, {}).serve()

    thread = Thread(target=serve)
    thread.start()
    for request in ({"do": "pause"}, {"do": "continue"}, {"do": "tokens", "rows": []}):
        send(engine, request)
    engine.settimeout(30)
    with engine:
        assert "error" not in receive(engine)[0]
    thread.join()
