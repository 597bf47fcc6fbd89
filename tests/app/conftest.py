"""Every test of the app waits for the thread of its screens, not for a run in another thread."""

import time

import pytest


@pytest.fixture(autouse=True)
def _idle_screens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Textual's pilot waits, a second at most, until the whole process is idle; a run never is.

    It must look no more often than a screen lays itself out, 60 times a second.
    """
    monkeypatch.setattr("textual._wait.process_time", time.thread_time)
