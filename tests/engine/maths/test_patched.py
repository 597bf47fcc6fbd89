"""A formula that another program replaces is recorded under a name of its own."""

import functools
from pathlib import Path

import pytest

from grpo_engine.events import NoteWritten, RunStarted
from grpo_engine.maths import loss, signal, trust
from grpo_engine.setup.patched import patched
from tests.engine.runs import events_of, settings, write_world


def test_nothing_is_replaced_by_itself() -> None:
    assert patched() == {}


def test_functions_and_entries_of_tables_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    @functools.wraps(trust.clip)  # has the name and the module of the one that it replaces
    def clip(*given: object) -> object:
        return trust.Push(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(trust, "clip", clip)
    monkeypatch.setattr(loss, "policy_loss", functools.partial(clip, 1))
    monkeypatch.setitem(signal.SIGNALS, "group_sign", lambda own, _: own.score)
    assert set(patched()) == {"trust.clip", "loss.policy_loss", "signal.group_sign"}
    assert all(place.startswith(f"{__file__}:") for place in patched().values())


def test_a_run_with_a_replaced_choice_is_not_recorded_as_the_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings(write_world(tmp_path), steps=1)
    started = next(e for e in events_of(config, tmp_path / "a") if isinstance(e, RunStarted))
    assert started.recipe == "grpo"
    monkeypatch.setitem(signal.SIGNALS, "group_standard", lambda own, _: own.score)
    events = events_of(config, tmp_path / "b")
    assert next(e for e in events if isinstance(e, RunStarted)).recipe == "patched grpo"
    said = [event.text for event in events if isinstance(event, NoteWritten)]
    assert any("signal.group_standard" in text for text in said)
