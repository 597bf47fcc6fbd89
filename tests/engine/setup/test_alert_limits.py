"""What the alert rules are told about a run."""

from pathlib import Path

import pytest

from grpo_engine.alerts.rules import RunLimits
from grpo_engine.alerts.state import Alerts
from grpo_engine.events import RunFinished
from grpo_engine.setup import opening
from tests.engine.runs import events_of, settings, write_world


def test_the_rules_know_the_weights_and_the_accuracy_function_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[RunLimits] = []

    def remember(limits: RunLimits) -> Alerts:
        told.append(limits)
        return Alerts(limits)

    monkeypatch.setattr(opening, "Alerts", remember)
    world = write_world(tmp_path)
    functions = [f"{world}/rewards.py:letters", f"{world}/rewards.py:accuracy"]
    config = settings(
        world,
        steps=1,
        rewards={"functions": functions, "weights": [2.0, -1.0]},
        algorithm={"passes": 3},
    )
    assert isinstance(events_of(config, tmp_path / "run")[-1], RunFinished)
    (limits,) = told
    assert limits.weights == {"letters": 2.0, "accuracy": -1.0}
    assert limits.accuracy == "accuracy"
    assert limits.updates_per_step == 3
