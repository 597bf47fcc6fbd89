"""The times of a step."""

import time

import pytest

from grpo_engine.run.clock import Clock


def test_processor_seconds_are_those_since_the_step_began(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = iter((100.0, 105.0, 107.5))  # at the clock's start, at the step's, and when asked
    monkeypatch.setattr(time, "process_time", lambda: next(spent))
    clock = Clock()
    clock.start_step()
    assert clock.processor_seconds == 2.5
