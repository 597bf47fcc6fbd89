"""Every test of the app waits for the thread of its screens, not for a run in another thread."""

import time

import pytest


@pytest.fixture(autouse=True)
def _idle_screens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Textual's pilot waits, a second at most, until the whole process is idle; a run never is.

    It looks less often than a screen lays itself out, and both often, so that tests take less time.
    """
    monkeypatch.setattr("textual.screen.UPDATE_PERIOD", 1 / 250)
    monkeypatch.setattr("textual._wait.SLEEP_GRANULARITY", 1 / 200)
    monkeypatch.setattr("textual._wait.process_time", time.thread_time)
