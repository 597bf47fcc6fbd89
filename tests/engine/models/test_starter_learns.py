"""The starter's run does what the README says: it improves on unseen problems."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from grpo_engine.config.parse import build, merge
from grpo_engine.events import (
    EvaluationFinished,
    Event,
    PassFinished,
    RunFinished,
)
from grpo_engine.policy.trees import flatten
from grpo_engine.presets import preset
from grpo_engine.tasks.arithmetic import SYMBOLS, mixed
from tests.engine.models.test_starter import published
from tests.engine.runs import events_of
from tools import make_starter


def starter_run(folder: Path, **changes: Any) -> list[Event]:
    events = events_of(build(merge(preset("starter").tree, changes)), folder)
    assert isinstance(events[-1], RunFinished), events[-1]
    return events


def results(events: list[Event]) -> Iterator[dict[str, float]]:
    """The metrics of the sampled evaluations, from first to last."""
    for event in events:
        if isinstance(event, EvaluationFinished) and event.mode == "sampled":
            yield dict(event.metrics)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_preset_keeps_the_promise_of_the_readme(tmp_path: Path) -> None:
    events = starter_run(tmp_path, seed=11, evaluation={"problems": 512})
    before, *_, after = results(events)

    assert after["eval/accuracy"] - before["eval/accuracy"] >= 0.25
    assert after["eval/format"] > before["eval/format_high"]
    gain = after["eval/accuracy_of_formatted"] - before["eval/accuracy_of_formatted"]
    assert gain >= 0.10
    assert any(isinstance(event, PassFinished) and event.index == 2 for event in events)


@pytest.mark.slow
def test_the_same_seed_makes_the_same_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_starter, "TEXTBOOK_STEPS", 3)
    monkeypatch.setattr(make_starter, "ROUND", 2)
    monkeypatch.setattr(make_starter, "CHECKED", 20)
    # accept any measurement
    monkeypatch.setattr(make_starter, "TOLERANCE", 1.0)

    monkeypatch.setattr(make_starter, "FEWEST_ROUNDS", 1)

    def weights() -> dict[str, mx.array]:
        return flatten(make_starter.make(1)[0].parameters())

    first, again = weights(), weights()

    assert len(first) > 20
    assert all(np.array_equal(first[name], again[name]) for name in first)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_another_seed_makes_a_starter_of_the_same_ability() -> None:
    model, tokenizer, _ = make_starter.make(4)
    asked = mixed(tuple(SYMBOLS), "held_out") * make_starter.SAMPLES

    found = make_starter.measure(model, tokenizer, asked, seed=0)

    assert abs(float(found.right.mean()) - published("accuracy")) <= 0.03
    assert abs(float(found.formed.mean()) - published("format")) <= 0.03
