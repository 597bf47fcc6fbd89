"""When the oldest objects are collected, and that the interpreter's rhythm comes back."""

import gc
from collections.abc import Iterator

import pytest

from app.tui.idle.tidying import EVERY_S, LATEST_S, NEVER, QUIET_S, Tidying


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tidying(clock: Clock) -> Iterator[Tidying]:
    made = Tidying(clock)
    yield made
    made.stop()


def test_it_waits_for_a_rest_of_the_keys_and_collects_then(tidying: Tidying, clock: Clock) -> None:
    tidying.start()
    full = gc.get_stats()[2]["collections"]
    assert gc.get_threshold()[2] == NEVER
    assert not tidying.look(QUIET_S)  # too soon
    clock.now += EVERY_S
    assert not tidying.look(QUIET_S / 2)  # somebody types
    assert tidying.look(QUIET_S)
    assert gc.get_stats()[2]["collections"] == full + 1
    assert not tidying.look(QUIET_S)


def test_it_does_not_wait_for_ever(tidying: Tidying, clock: Clock) -> None:
    tidying.start()
    clock.now += LATEST_S
    assert tidying.look(0.0)


def test_the_interpreters_rhythm_comes_back(tidying: Tidying) -> None:
    before = gc.get_threshold()
    assert not tidying.look(LATEST_S)
    tidying.start()
    tidying.start()
    tidying.stop()
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
