"""A run that fails keeps the steps before, as if it had been stopped there."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from grpo_engine import trainer
from grpo_engine.config.settings import RunConfig
from grpo_engine.errors import RewardError
from grpo_engine.events import CheckpointSaved, Event, RunFailed, StepFinished
from grpo_engine.metrics import PHASES, time_of
from grpo_engine.rewards.client import RewardClient
from grpo_engine.run import persist
from tests.engine.runs import completed, events_of, of, settings, write_world

TIMES = {
    *map(time_of, PHASES),
    "time/processor",
    "time/others",
    "step_time",
    "tokens_per_second",
    "memory/peak_gb",
}


def metrics_of(events: list[Event]) -> dict[int, dict[str, float]]:
    return {
        event.step: {name: n for name, n in event.metrics.items() if name not in TIMES}
        for event in of(StepFinished, events)
    }


class Unbroken(NamedTuple):
    """Settings of three steps, and the metrics of a run that was not disturbed."""

    config: RunConfig
    metrics: dict[int, dict[str, float]]


@pytest.fixture(scope="module", params=["lora", "full"])
def unbroken(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Unbroken:
    folder = tmp_path_factory.mktemp(request.param)
    changes = {"model": {"tuning": request.param}, "checkpoint": {"every": 0}}
    config = settings(write_world(folder), steps=3, **changes)
    return Unbroken(config, metrics_of(events_of(config, folder / "unbroken")))


@pytest.mark.slow
def test_a_run_whose_reward_fails_is_resumed_after_its_last_step(
    unbroken: Unbroken, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = unbroken.config
    score = RewardClient.score

    def fail(client: RewardClient, *args: Any, **keywords: Any) -> Any:
        if args[4]["global_step"] == 2:
            raise RewardError("no score")
        return score(client, *args, **keywords)

    with monkeypatch.context() as patched:
        patched.setattr(RewardClient, "score", fail)
        events = events_of(config, tmp_path / "run")
    assert isinstance(events[-1], RunFailed)
    assert [event.step for event in of(CheckpointSaved, events)] == [2]
    resumed = completed(config, tmp_path / "run", resume=True)
    assert metrics_of(events) | metrics_of(resumed) == unbroken.metrics
    assert [*metrics_of(resumed)] == [3]


@pytest.mark.slow
def test_weights_in_the_middle_of_a_step_are_never_saved(
    unbroken: Unbroken, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the update only LoRA has a copy of the weights that the step began with."""
    config = unbroken.config
    saved = [2] if config.model.tuning == "lora" else []
    score = trainer.score_after_update

    def fail(run: Any, step: int, *rest: Any) -> Any:
        if step == 3:
            raise RewardError("after the update")
        return score(run, step, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(trainer, "score_after_update", fail)
        events = events_of(config, tmp_path / "run")
    assert isinstance(events[-1], RunFailed)
    assert [event.step for event in of(CheckpointSaved, events)] == saved
    resumed = metrics_of(events_of(config, tmp_path / "run", resume=True))
    assert resumed == {
        step: n for step, n in unbroken.metrics.items() if step > max(saved, default=0)
    }


@pytest.mark.parametrize(
    ("changes", "saves"),
    [
        ({}, True),  # between two steps
        ({"is_changing": True, "step_state": {}}, True),  # in a step, with the state before it
        ({"is_changing": True}, False),  # the weights are those in the middle of a step
        ({"saved_step": 5}, False),
        ({"step": 0}, False),
        ({"ranks": SimpleNamespace(size=2)}, False),
    ],
)
def test_only_a_state_after_a_whole_step_is_saved(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], saves: bool
) -> None:
    monkeypatch.setattr(persist, "save_checkpoint", lambda _: ["saved"])
    usual = {"step": 5, "saved_step": 4, "step_state": None, "is_changing": False}
    run: Any = SimpleNamespace(**{**usual, "ranks": SimpleNamespace(size=1), **changes})
    events: list[Any] = list(persist.save_after_failure(run))
    assert events == ["saved"] * saves
