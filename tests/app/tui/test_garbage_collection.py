"""When the oldest objects are collected, and that the interpreter's schedule is restored."""

import gc
from collections.abc import Iterator

import pytest

from grpo_tui.app.tui.garbage_collection import (
    EVERY_S,
    LATEST_S,
    NEVER,
    QUIET_S,
    IdleGarbageCollection,
)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def collection(clock: Clock) -> Iterator[IdleGarbageCollection]:
    made = IdleGarbageCollection(clock)
    yield made
    made.stop()


def test_it_collects_once_no_key_is_pressed(
    collection: IdleGarbageCollection, clock: Clock
) -> None:
    collection.start()
    full = gc.get_stats()[2]["collections"]
    assert gc.get_threshold()[2] == NEVER
    assert not collection.poll(QUIET_S)  # too soon
    clock.now += EVERY_S
    assert not collection.poll(QUIET_S / 2)  # a key was pressed
    assert collection.poll(QUIET_S)
    assert gc.get_stats()[2]["collections"] == full + 1
    assert not collection.poll(QUIET_S)


def test_it_does_not_wait_for_ever(collection: IdleGarbageCollection, clock: Clock) -> None:
    collection.start()
    clock.now += LATEST_S
    assert collection.poll(0.0)


def test_the_interpreters_schedule_comes_back(collection: IdleGarbageCollection) -> None:
    before = gc.get_threshold()
    assert not collection.poll(LATEST_S)
    collection.start()
    collection.stop()
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
