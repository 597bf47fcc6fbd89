"""A run reports what slows it down: a slow BLAS, or other programs using its cores."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from grpo_engine.cpu import blas, guard
from grpo_engine.events import AlertRaised
from grpo_engine.training import step
from tests.engine import runs


def alerts(tmp_path: Path) -> dict[str, AlertRaised]:
    world = runs.write_world(tmp_path)
    found = runs.events_of(runs.settings(world, steps=1, evaluation={"pinned": 0}), tmp_path / "r")
    return {event.rule: event for event in found if isinstance(event, AlertRaised)}


def test_a_run_on_slow_products_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = blas.Blas(problem="Products are slow.", remedy="Install one.")
    monkeypatch.setattr(blas, "state", lambda: slow)
    found = alerts(tmp_path)["slow_products"]
    assert (found.explanation, found.remedy) == ("Products are slow.", "Install one.")


def test_a_run_that_gave_a_core_up_says_so_and_remembers_its_threads() -> None:
    given_up = guard.CoreGivenUp(milliseconds=16.0, usual=0.3, before=2, after=1)
    run: Any = SimpleNamespace(
        step=7, threads=2, thread_guard=SimpleNamespace(check=lambda: given_up)
    )
    (found,) = step.free_core(run)
    assert isinstance(found, AlertRaised)
    assert (found.rule, found.step, found.value, found.limit) == ("busy_machine", 7, 16.0, 0.3)
    assert run.threads == 1
