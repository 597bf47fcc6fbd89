"""Quitting while the store is read: the query in progress and those that wait end at once."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import text

from grpo_tui.app.tui.store.reader import ReaderThread
from grpo_tui.experiments.reader import StoreReader
from tests.experiments.made import record_run
from tests.patience import PATIENCE

COUNT = (
    "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT {}) SELECT max(i) FROM n"
)
DAYS = 10**12  # of counting


@pytest.fixture
def thread(tmp_path: Path) -> ReaderThread:
    record_run(tmp_path / "s.db", steps=1)
    return ReaderThread(tmp_path / "s.db")


def slow(reader: StoreReader) -> object:
    return reader.value(text(COUNT.format(DAYS)))


def many_queries(reader: StoreReader) -> None:
    while True:
        reader.value(text(COUNT.format(1000)))


async def closes(thread: ReaderThread) -> None:
    """Close on another thread, so that a close that hangs fails the test."""
    closing = threading.Thread(target=thread.close, daemon=True)
    closing.start()
    await asyncio.to_thread(closing.join, PATIENCE)
    assert not closing.is_alive()


@pytest.mark.parametrize("question", [slow, many_queries])
async def test_closing_ends_the_query_in_progress_and_those_that_wait(
    thread: ReaderThread, question: Callable[[StoreReader], object]
) -> None:
    started = threading.Event()

    def begun(reader: StoreReader) -> object:
        started.set()
        return question(reader)

    thread.first_frame.set()
    asked = [asyncio.ensure_future(thread.read(call)) for call in (begun, slow, question)]
    await asyncio.to_thread(started.wait, PATIENCE)
    await closes(thread)
    answers = asyncio.gather(*asked, return_exceptions=True)
    assert [type(answer) for answer in await asyncio.wait_for(answers, PATIENCE)] == [
        InterruptedError
    ] * 3


async def test_closing_ends_a_query_that_waits_for_the_first_frame(thread: ReaderThread) -> None:
    query = asyncio.ensure_future(thread.read(slow))
    await asyncio.sleep(0)
    await closes(thread)
    with pytest.raises(InterruptedError):
        await asyncio.wait_for(query, PATIENCE)
