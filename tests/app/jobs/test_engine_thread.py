"""The engine's thread, which outlives its runs."""

import pytest

from grpo_engine.platform import heap
from grpo_tui.app.jobs.engine_thread import EngineThread
from tests.patience import PATIENCE


def test_the_memory_of_a_run_goes_back_when_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr("grpo_engine.setup.startup.enter_engine", lambda _: None)
    monkeypatch.setattr(heap, "trim", lambda: done.append("given back"))
    thread = EngineThread()
    thread.submit(lambda: done.append("one run"))
    thread.submit(lambda: done.append("another"))
    thread.finish()
    thread.start()
    thread.join(PATIENCE)
    assert done == ["one run", "given back", "another", "given back"]
