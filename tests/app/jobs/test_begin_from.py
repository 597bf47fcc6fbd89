"""A new run that begins with a checkpoint of another, and what is kept and said of it."""

import shutil
from pathlib import Path

import mlx.core as mx
import pytest

from grpo_engine import events as ev
from grpo_engine.config.parse import build
from grpo_engine.config.settings import RunConfig, TeacherConfig
from grpo_engine.errors import CheckpointError, ConfigError
from grpo_engine.run import checkpoint
from grpo_tui.app.cli.run_config import assemble, checkpoint_start
from grpo_tui.app.jobs.start import new_job, resumed_job, with_teacher
from grpo_tui.experiments.purge import purge
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.starts import copy_starts
from grpo_tui.experiments.store import ExperimentStore
from tests.engine.runs import settings


def trained(config: RunConfig, store: Path) -> checkpoint.Checkpoint:
    """Train a run and return its last checkpoint."""
    job = new_job(config, store=store)
    ended: list[ev.Event] = []
    job.train(ended.append)
    job.close()
    assert isinstance(ended[-1], ev.RunFinished), ended[-1]
    saved, problems = checkpoint.latest(job.folder)
    assert saved is not None, problems
    return saved


def child_of(
    store: Path, ref: str, name: str, *, both: bool = False, **changes: object
) -> RunConfig:
    start = checkpoint_start(ref, store, with_optimizer=both)
    sets = [f"{key}={value}" for key, value in changes.items()]
    return assemble(None, None, sets, name=name, start=start)


def first(store: Path, world: Path, **sections: object) -> checkpoint.Checkpoint:
    base = settings(world, steps=2, name="first", **sections)
    return trained(base, store)


@pytest.mark.slow
@pytest.mark.parametrize("tuning", ["lora", "full"])
@pytest.mark.parametrize("both", [False, True])
def test_a_run_begins_with_the_weights_and_on_request_with_the_optimisers_state(
    world: Path, tmp_path: Path, tuning: str, both: bool
) -> None:
    store = tmp_path / "s.db"
    parent = first(store, world, model={"tuning": tuning})
    frozen = {"steps": 1, "optimizer.learning_rate": 0}
    child = trained(child_of(store, "first:2", "second", both=both, **frozen), store)
    # at a learning rate of 0 weights stay; the optimiser has counted the parent's two steps or not
    wanted, found = parent.tensors("trained"), child.tensors("trained")
    assert wanted.keys() == found.keys()
    assert all(mx.array_equal(wanted[name], found[name]).item() for name in wanted)
    assert child.tensors("optimizer")["step"].item() == (3 if both else 1)


@pytest.mark.slow
def test_the_start_of_a_run_outlives_the_run_that_it_is_from(world: Path, tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    first(path, world)
    trained(child_of(path, "first", "second", steps=1), path)
    third = trained(child_of(path, "second:1", "third", steps=1), path)
    with StoreReader(path) as reader:
        detail = reader.run(reader.resolve("third").key)
        keys = {name: reader.resolve(name).key for name in ("first", "second")}
    assert detail.descent == "step 1 of second"
    store = ExperimentStore(path)
    try:
        purge(store, keys["second"])
        # the start of third is kept, that of second is not needed any more
        kept = Path(detail.config["model"]["adapter"])
        assert [place for place in kept.parent.iterdir() if place.is_dir()] == [kept]
        job = resumed_job("third", store=path, steps=2)
        job.train(lambda _: None)
        job.close()
        assert checkpoint.newest_step(third.path.parents[1]) == 2
        with StoreReader(path) as reader:
            assert reader.run(reader.resolve("third").key).descent == ""
            purge(store, reader.resolve("third").key)
        assert list(kept.parent.iterdir()) == []
    finally:
        store.close()


def test_a_clone_says_whose_settings_it_has(world: Path, tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    config = settings(world, steps=1, name="first")
    trained(config, path)
    job = new_job(config.model_copy(update={"name": "clone"}), store=path, parent="first")
    job.close()
    with StoreReader(path) as reader:
        assert reader.run(reader.resolve("clone").key).descent == "settings of first"


def test_a_copy_is_made_where_files_cannot_be_linked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "runs" / "abcdefgh" / "checkpoints" / "step-000020"
    place.mkdir(parents=True)
    (place / "adapters.safetensors").write_text("weights")

    def refuse(*_: object, **__: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr("os.link", refuse)
    changed, origin = copy_starts(tmp_path / "s.db", {"model": {"adapter": str(place)}})
    assert origin == "abcdefgh"
    shutil.rmtree(place)
    kept = Path(changed["model"]["adapter"])
    assert (kept / "adapters.safetensors").read_text() == "weights"
    assert [one.name for one in kept.parent.iterdir()] == ["abcdefgh-step-000020"]


def test_other_models_and_adapters_stay_where_they_are(tmp_path: Path) -> None:
    adapter = tmp_path / "mine"
    adapter.mkdir()
    tree = {"model": {"adapter": str(adapter), "path": "starter"}, "optimizer": {"start": None}}
    assert copy_starts(tmp_path / "s.db", tree) == ({}, "")


def test_an_optimisers_state_that_does_not_fit_is_refused(world: Path, tmp_path: Path) -> None:
    parent = first(tmp_path / "s.db", world)
    config = settings(world, steps=1, model={"lora_rank": 3}, optimizer={"start": str(parent.path)})
    job = new_job(build(config.model_dump(mode="json")), store=tmp_path / "s.db")
    seen: list[ev.Event] = []
    job.train(seen.append)
    job.close()
    failed = seen[-1]
    assert isinstance(failed, ev.RunFailed)
    assert failed.error == CheckpointError.__name__
    assert "optimizer.start" in failed.message
    assert "the same optimiser" in failed.message


@pytest.mark.slow
def test_a_run_is_a_teacher_by_its_name_and_is_kept_for_the_run_that_learns(
    world: Path, tmp_path: Path
) -> None:
    store = tmp_path / "s.db"
    first(store, world)
    learns = settings(
        world,
        steps=1,
        name="second",
        algorithm={"recipe": "distill"},
        teacher={"path": "first:2"},
    )
    assert with_teacher(learns, store).teacher.path.endswith("checkpoints/step-000002")
    trained(learns, store)
    with StoreReader(store) as reader:
        path = Path(reader.run(reader.resolve("second").key).config["teacher"]["path"])
    assert path.parent == tmp_path / "starts"
    assert (path / "adapters.safetensors").is_file()
    nobody = learns.model_copy(update={"teacher": TeacherConfig(path="nobody")})
    with pytest.raises(ConfigError, match=r"'nobody' is neither a model nor a run of the store"):
        with_teacher(nobody, store)
