"""The guard gives a core up after three stalls in a row, and only then."""

import pytest

from grpo_engine.cpu import blas, guard
from grpo_engine.platform import speed


def scripted_guard(
    monkeypatch: pytest.MonkeyPatch, times: list[float]
) -> tuple[guard.ThreadGuard, list[int]]:
    """A guard that measures these times, and the list of thread counts it sets."""
    left, changes, state = iter(times), [], [blas.Blas(library="x", threads=2)]

    def set_threads(count: int) -> int:
        changes.append(count)
        state[0] = blas.Blas(library="x", threads=count)
        return count

    monkeypatch.setattr(guard, "EVERY", -1.0)
    monkeypatch.setattr(blas, "state", lambda: state[0])
    monkeypatch.setattr(blas, "set_threads", set_threads)
    monkeypatch.setattr(speed, "measure", lambda shape, _: speed.Speed(shape, next(left), 1.0))
    return guard.ThreadGuard(), changes


def test_three_stalls_in_a_row_give_one_core_up(monkeypatch: pytest.MonkeyPatch) -> None:
    # One thread takes .3 ms. With two: fine, a stall, fine, and three stalls.
    found, changes = scripted_guard(monkeypatch, [0.3, 0.2, 16.0, 0.2, 16.0, 16.0, 16.0])
    said = [found.check() for _ in range(6)]
    assert said[:5] == [None] * 5
    expected = guard.CoreGivenUp(milliseconds=16.0, usual=0.3, before=2, after=1)
    assert said[5] == expected
    assert "1 of 2 threads" in expected.explanation
    assert "GRPO_TUI_THREADS=1" in expected.remedy
    assert changes == [1, 2, 1]
    assert found.check() is None


def test_a_single_thread_is_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    found, changes = scripted_guard(monkeypatch, [])
    blas.set_threads(1)
    assert found.check() is None
    assert changes == [1]
