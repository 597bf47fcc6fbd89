"""Every test of the app waits for the thread of its screens, not for a run in another thread."""

import time

import pytest

TICK_S = 1 / 200


@pytest.fixture(autouse=True)
def _idle_screens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Textual's pilot waits, a second at most, until the whole process is idle; a run never is.

    It looks every 20 ms, which adds up over thousands of keys.
    """
    monkeypatch.setattr("textual._wait.process_time", time.thread_time)
    monkeypatch.setattr("textual._wait.SLEEP_GRANULARITY", TICK_S)
