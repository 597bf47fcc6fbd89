"""Checkpoints are complete or absent, whatever happens during a write."""

import json
import shutil
from pathlib import Path

import mlx.core as mx
import pytest

from grpo_engine import trainer
from grpo_engine.control import Control
from grpo_engine.errors import CheckpointError
from grpo_engine.events import CheckpointSaved, NoteWritten
from grpo_engine.run import checkpoint
from tests.engine.runs import events_of, of, settings, write_world


def write_config(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{}")


def write(folder: Path, step: int, value: float = 1.0) -> checkpoint.Checkpoint:
    return checkpoint.save(
        folder,
        step,
        tensors={"adapters": {"w": mx.array([value, 2.0])}},
        state={"cursor": 7},
        write=write_config,
    )


def test_a_saved_checkpoint_comes_back_bit_for_bit(tmp_path: Path) -> None:
    third = mx.array([1.0, 1 / 3])
    checkpoint.save(tmp_path, 4, tensors={"a": {"x": third}}, state={"cursor": 7})
    back, problems = checkpoint.latest(tmp_path)
    assert back is not None
    assert problems == []
    assert (back.step, back.state["cursor"]) == (4, 7)
    assert mx.array_equal(back.tensors("a")["x"], third)


def test_a_name_that_was_not_saved_is_an_error(tmp_path: Path) -> None:
    saved = write(tmp_path, 1)
    assert not saved.has("critic")
    with pytest.raises(CheckpointError, match=r"critic\.safetensors"):
        saved.tensors("critic")


def test_an_interrupted_save_leaves_the_one_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, 2)

    def die(_path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "flush", die)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, 4)
    assert checkpoint.steps(tmp_path) == [2]
    monkeypatch.undo()
    write(tmp_path, 4)
    assert checkpoint.steps(tmp_path) == [2, 4]
    assert not list((tmp_path / checkpoint.FOLDER).glob(".*"))


def test_a_removal_cut_short_leaves_no_half_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        write(tmp_path, step)
    monkeypatch.setattr(
        shutil, "rmtree", lambda path, **_: (path / "adapters.safetensors").unlink()
    )
    checkpoint.prune(tmp_path, keep=1, best=None)
    monkeypatch.undo()
    back, problems = checkpoint.latest(tmp_path)
    assert back is not None
    assert problems == []
    assert checkpoint.steps(tmp_path) == [2]


def test_a_kill_between_the_two_renames_of_a_second_save_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, 3, value=1.0)
    rename = Path.rename

    def die(path: Path, target: Path) -> Path:
        if path.name.startswith(".partial"):
            raise KeyboardInterrupt
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", die)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, 3, value=5.0)
    monkeypatch.undo()
    back, _ = checkpoint.latest(tmp_path)
    assert back is not None
    assert back.tensors("adapters")["w"].tolist() == [1.0, 2.0]


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove", "state"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_taken(
    tmp_path: Path, damage: str
) -> None:
    write(tmp_path, 2)
    newest = write(tmp_path, 4).path
    file = newest / "adapters.safetensors"
    data = file.read_bytes()
    match damage:
        case "truncate":
            file.write_bytes(data[:-4])
        case "flip":
            file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        case "remove":
            file.unlink()
        case "state":
            (newest / checkpoint.STATE).write_text("{")
    back, problems = checkpoint.latest(tmp_path)
    assert back is not None
    assert back.step == 2
    assert str(newest) in problems[0]


def test_a_checkpoint_of_another_format_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, 1).path / checkpoint.STATE
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    with pytest.raises(CheckpointError, match="format"):
        checkpoint.load(tmp_path, 1)


def test_pruning_keeps_the_newest_and_the_best(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4, 5):
        write(tmp_path, step)
    checkpoint.prune(tmp_path, keep=2, best=2)
    assert checkpoint.steps(tmp_path) == [2, 4, 5]


def test_a_second_save_of_a_step_replaces_the_first(tmp_path: Path) -> None:
    write(tmp_path, 3, value=1.0)
    write(tmp_path, 3, value=5.0)
    assert checkpoint.load(tmp_path, 3).tensors("adapters")["w"].tolist() == [5.0, 2.0]


def test_an_empty_folder_has_no_checkpoint(tmp_path: Path) -> None:
    assert checkpoint.latest(tmp_path) == (None, [])


@pytest.mark.slow
@pytest.mark.parametrize("changed", [False, True])
def test_a_model_that_changed_between_checkpoints_is_named_on_resume(
    tmp_path: Path, changed: bool
) -> None:
    (tmp_path / "world").mkdir()
    world = write_world(tmp_path / "world")
    config = settings(world, steps=4, checkpoint={"every": 2})
    for event in trainer.run(config, Control(), folder=tmp_path / "run"):
        if isinstance(event, CheckpointSaved) and event.step == 2:
            break
    if changed:
        file = world / "model" / "model.safetensors"
        weights: dict[str, mx.array] = mx.load(str(file))  # type: ignore[assignment]
        weights["model.norm.weight"] = weights["model.norm.weight"] * 1.5
        mx.eval(weights)
        mx.save_safetensors(str(file), weights, metadata={"format": "mlx"})
    seen = events_of(config, tmp_path / "run", resume=True)
    notes = [event.text for event in of(NoteWritten, seen)]
    named = [text for text in notes if f"the content of {world / 'model'} was" in text]
    assert len(named) == int(changed)
