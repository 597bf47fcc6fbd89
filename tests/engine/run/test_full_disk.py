"""A run whose disk is full keeps training, keeps its checkpoints, and saves once there is room."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_engine import trainer
from grpo_engine.control import Control
from grpo_engine.events import (
    CheckpointSaved,
    Event,
    NoteWritten,
    RunFinished,
    RunPaused,
    RunResumed,
    StepFinished,
)
from grpo_engine.run.checkpoint import FOLDER, steps
from tests.disks import fill, small_disk
from tests.engine.runs import events_of, notes, of, settings


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "small", "4m") as place:
        yield place


def losses(events: list[Event]) -> list[float]:
    return [event.metrics["loss"] for event in of(StepFinished, events)]


@pytest.mark.slow
@pytest.mark.parametrize("tuning", ["lora", "full"])
def test_a_checkpoint_that_does_not_fit_is_written_later_and_training_is_the_same(
    world: Path, tmp_path: Path, disk: Path, tuning: str
) -> None:
    config = settings(world, model={"tuning": tuning}, checkpoint={"every": 1, "keep": 1})
    undisturbed = events_of(config, tmp_path / "other")
    seen: list[Event] = []
    ballast = None
    for event in trainer.run(config, Control(), folder=disk / "run"):
        seen.append(event)
        if isinstance(event, CheckpointSaved) and event.step == 1:
            ballast = fill(disk)
        if isinstance(event, StepFinished) and event.step == 3:
            assert steps(disk / "run") == [1], "the earlier checkpoint stays"
            assert ballast is not None
            ballast.unlink()
    assert losses(seen) == losses(undisturbed)
    assert [e.step for e in of(CheckpointSaved, seen)] == [1, 3, 4]
    (complaint,) = [text for text in notes(seen) if "cannot be written" in text]
    assert complaint.startswith(
        f"the checkpoint of step 2 cannot be written to {disk / 'run' / FOLDER}: "
        "No space left on device; it needs "
    )
    assert "0.0 MB are free" in complaint
    assert "checkpoints can be written again" in notes(seen)
    assert isinstance(seen[-1], RunFinished)


@pytest.mark.slow
def test_the_last_checkpoint_waits_until_there_is_room(world: Path, disk: Path) -> None:
    config = settings(world, steps=2, checkpoint={"every": 1})
    seen: list[Event] = []
    ballast = None
    for event in trainer.run(config, Control(), folder=disk / "run"):
        seen.append(event)
        if isinstance(event, CheckpointSaved) and event.step == 1:
            ballast = fill(disk)
        if isinstance(event, RunPaused):
            assert "No space left on device" in event.reason
            assert ballast is not None
            ballast.unlink()
    assert [type(event) for event in seen[-4:]] == [
        CheckpointSaved,
        NoteWritten,
        RunResumed,
        RunFinished,
    ] or [type(event) for event in seen[-4:]] == [
        NoteWritten,
        CheckpointSaved,
        RunResumed,
        RunFinished,
    ]
    assert steps(disk / "run")[-1] == 2


def test_a_stop_ends_a_run_that_waits_for_room(world: Path, disk: Path) -> None:
    config = settings(world, steps=2, checkpoint={"every": 1})
    control, seen = Control(), list[Event]()
    for event in trainer.run(config, control, folder=disk / "run"):
        seen.append(event)
        if isinstance(event, CheckpointSaved) and event.step == 1:
            fill(disk)
        if isinstance(event, RunPaused):
            control.ask("stop_after_step")
    assert isinstance(seen[-1], RunFinished)
    assert notes(seen)[-1].startswith("the run ends without a checkpoint of step 2: ")
    assert steps(disk / "run") == [1]


@pytest.mark.slow
def test_a_run_waits_before_its_next_step_while_nothing_can_be_recorded(
    world: Path, tmp_path: Path
) -> None:
    control, seen = Control(), list[Event]()
    for event in trainer.run(settings(world, steps=2), control, folder=tmp_path):
        seen.append(event)
        if isinstance(event, StepFinished) and event.step == 1:
            control.block("no room")
        if isinstance(event, RunPaused):
            assert (event.step, event.reason) == (1, "no room")
            control.block("")
    assert [e.step for e in of(RunResumed, seen)] == [1]
    assert losses(seen) == losses(events_of(settings(world, steps=2), tmp_path / "other"))
