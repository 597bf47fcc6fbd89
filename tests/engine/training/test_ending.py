"""What counts as right, as best and as the end, with rewards of the user's own."""

from pathlib import Path
from typing import Any

import pytest

from grpo_engine.config.settings import RunConfig
from grpo_engine.control import Control
from grpo_engine.events import (
    CheckpointSaved,
    EvaluationFinished,
    RunFailed,
    RunFinished,
    StepFinished,
)
from grpo_engine.run import checkpoint
from grpo_engine.trainer import run
from tests.engine.runs import events_of, notes, of, settings

EVERY = {"every": 1, "before_and_after": True, "greedy": False, "samples": 2}


def test_the_run_ends_where_stop_when_holds_and_is_complete(world: Path, tmp_path: Path) -> None:
    config = settings(world, steps=6, stop_when="reward > 0 for 2", evaluation=EVERY)
    events = events_of(config, tmp_path / "run")
    end = events[-1]
    assert isinstance(end, RunFinished)
    assert (end.step, end.reason) == (2, "completed")
    assert [e.step for e in of(CheckpointSaved, events)][-1] == 2
    evaluated = [(e.step, e.moment) for e in of(EvaluationFinished, events)]
    assert evaluated == [(0, "before"), (1, "during"), (2, "after")]
    texts = notes(events)
    assert any(
        "stop_when 'reward > 0 for 2' holds, so the run ends: reward 0." in text for text in texts
    )
    # resuming it trains nothing
    again = events_of(config, tmp_path / "run", resume=True)
    assert not any(isinstance(event, StepFinished) for event in again)
    assert isinstance(again[-1], RunFinished)


def stopped_after(config: RunConfig, folder: Path, step: int) -> None:
    control = Control()
    for event in run(config, control, folder=folder):
        if isinstance(event, StepFinished) and event.step == step:
            control.ask("stop_after_step")


def test_a_resumed_run_ends_where_the_unbroken_one_does(world: Path, tmp_path: Path) -> None:
    config = settings(world, steps=6, stop_when="reward > 0 for 3 step >= 3")
    stopped_after(config, tmp_path, 2)
    events = events_of(config, tmp_path, resume=True)
    assert (events[-1].step, [e.step for e in of(StepFinished, events)]) == (3, [3])


@pytest.mark.slow
def test_a_run_that_continues_counts_from_the_start(world: Path, tmp_path: Path) -> None:
    config = settings(world, steps=6, stop_when="reward > 0 for 3")
    assert events_of(config, tmp_path)[-1].step == 3
    longer = config.model_copy(update={"steps": 9})
    assert events_of(longer, tmp_path, resume=True)[-1].step == 6


@pytest.mark.slow
def test_more_steps_equal_a_run_that_had_them_from_the_start(world: Path, tmp_path: Path) -> None:
    short = settings(world, steps=2, checkpoint={"every": 1})
    longer = settings(world, steps=4, checkpoint={"every": 1})
    events_of(short, tmp_path / "grown")
    grown = events_of(longer, tmp_path / "grown", resume=True)
    whole = events_of(longer, tmp_path / "whole")
    assert isinstance(grown[-1], RunFinished)
    saved = [checkpoint.latest(tmp_path / name)[0] for name in ("grown", "whole")]
    assert all(one is not None and one.step == 4 for one in saved)
    for name in ("trained", "optimizer"):
        there, here = (one.tensors(name) for one in saved if one is not None)
        assert there.keys() == here.keys()
        assert all(there[key].tolist() == here[key].tolist() for key in here)
    numbers = [
        [e.metrics["loss"] for e in of(StepFinished, events) if e.step > 2]
        for events in (grown, whole)
    ]
    assert numbers[0] == numbers[1]


@pytest.mark.slow
def test_more_steps_say_that_a_schedule_jumps(world: Path, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"optimizer": {"schedule": "cosine"}, "checkpoint": {"every": 1}}
    events_of(settings(world, steps=1, **changes), tmp_path)
    events = events_of(settings(world, steps=2, **changes), tmp_path, resume=True)
    texts = notes(events)
    assert any("cosine schedule over 2 steps" in text and "over 1" in text for text in texts)


@pytest.mark.slow
def test_the_users_reward_and_threshold_say_what_is_right(world: Path, tmp_path: Path) -> None:
    def share(accuracy: str) -> tuple[float, float]:
        config = settings(world, steps=1, evaluation={**EVERY, "every": 0, "accuracy": accuracy})
        (first, *_) = of(EvaluationFinished, events_of(config, tmp_path / (accuracy or "own")))
        assert first.metrics["eval/accuracy"] * 8 == sum(row.correct or 0 for row in first.rows)
        return first.metrics["eval/accuracy"], first.metrics["eval/rewards/letters"]

    # letters scores the share of letters: all are right from 0 on, none beyond 1
    assert share("letters >= 0")[0] == 1
    assert share("letters > 1")[0] == 0
    assert 0 < share("letters >= .25")[0] < 1  # the mean is .22
    assert share("accuracy")[0] == share("")[0] == share("accuracy >= 1")[0]


@pytest.mark.parametrize(
    ("settings_", "words"),
    [
        ({"evaluation": {"accuracy": "right >= 1"}}, "its functions are letters, accuracy"),
        ({"evaluation": {"accuracy": "letters >= most"}}, "`NAME >= NUMBER`"),
        ({"evaluation": {"accuracy": "letters > 0 accuracy > 0"}}, "`NAME >= NUMBER`"),
        ({"stop_when": "rewards/words/mean > 1"}, "'words' is not a reward function of the run"),
        ({"checkpoint": {"best_by": "eval/rewards/words"}}, "'words' is not a reward function"),
    ],
)
def test_a_reward_that_the_run_lacks_is_refused_before_it_trains(
    world: Path, tmp_path: Path, settings_: dict[str, Any], words: str
) -> None:
    *_, end = events_of(settings(world, **settings_), tmp_path)
    assert isinstance(end, RunFailed)
    assert words in end.message
    assert "".join(settings_) in end.message.split()[0]


def test_the_best_checkpoint_is_best_by_the_chosen_metric(world: Path, tmp_path: Path) -> None:
    config = settings(
        world, steps=4, evaluation=EVERY, checkpoint={"every": 1, "best_by": "eval/rewards/letters"}
    )
    events = events_of(config, tmp_path)
    scores = {
        e.step: e.metrics["eval/rewards/letters"] for e in of(EvaluationFinished, events) if e.step
    }
    best = max(scores, key=lambda step: (scores[step], -step))
    saved, _ = checkpoint.latest(tmp_path)
    assert saved is not None
    assert saved.state["progress"]["best_step"] == best
    assert saved.state["progress"]["best_score"] == scores[best]


def test_the_untrained_policy_is_not_among_the_best(world: Path, tmp_path: Path) -> None:
    config = settings(world, steps=1, evaluation=EVERY, optimizer={"learning_rate": 0.0})
    events_of(config, tmp_path)  # both evaluations score the same
    saved, _ = checkpoint.latest(tmp_path)
    assert saved is not None
    assert saved.state["progress"]["best_step"] == 1
