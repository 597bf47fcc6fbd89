"""Stores of strangers: what a run's id names stays in the store's folder."""

from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_tui.experiments.db.paths import RUNS, STARTS
from grpo_tui.experiments.errors import ExportError, OutsideStoreError, StoreError
from grpo_tui.experiments.export.trackers import export_to
from grpo_tui.experiments.purge import purge
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.record.recorder import resume_run
from grpo_tui.experiments.record.spill import read_in_all
from grpo_tui.experiments.store import ExperimentStore
from tests.experiments.made import record_run, sql

PLANTED = ["../../victim", "ABSOLUTE", ""]  # tests/engine/test_paths.py has all kinds


def planted(tmp_path: Path, short: str) -> tuple[Path, Path]:
    """A store with another run, whose id is planted, and a folder that must stay."""
    store = tmp_path / "a" / "s.db"
    record_run(store, name="theirs")
    record_run(store, name="other")
    victim = tmp_path / "victim"
    victim.mkdir()
    (tmp_path / "a" / "victim").mkdir()
    short = str(victim) if short == "ABSOLUTE" else short
    sql(store, f"UPDATE run SET short = '{short}' WHERE name = 'theirs'")
    return store, victim


def folders(tmp_path: Path) -> set[Path]:
    return {path for path in tmp_path.rglob("*") if path.is_dir()}


@pytest.mark.parametrize("short", PLANTED)
def test_a_planted_id_removes_and_writes_nothing(tmp_path: Path, short: str) -> None:
    path, _ = planted(tmp_path, short)
    before = folders(tmp_path)
    with ExperimentStore(path) as store:
        key = store.key_of("theirs")
        with pytest.raises(OutsideStoreError):
            purge(store, key)
        assert store.key_of("theirs") == key
    with pytest.raises(StoreError):
        resume_run(path, "theirs", from_step=0)
    assert folders(tmp_path) == before


@pytest.mark.parametrize("short", ["/../../victim/x", "../../victim/x"])
def test_an_export_stays_in_its_folder(tmp_path: Path, short: str) -> None:
    path, victim = planted(tmp_path, short)
    with StoreReader(path) as reader, pytest.raises((StoreError, ExportError)):
        export_to("tensorboard", reader, [reader.resolve("theirs")], tmp_path / "a" / "out")
    assert list(victim.iterdir()) == []


@pytest.mark.parametrize("name", [RUNS, STARTS])
def test_a_planted_link_removes_nothing_elsewhere(tmp_path: Path, name: str) -> None:
    path, victim = planted(tmp_path, "victim")
    (victim / "victim").mkdir()
    (victim / "thesis").mkdir()
    folder = path.parent / name
    if folder.exists():
        folder.rename(path.parent / "before")
    folder.symlink_to(victim)
    with ExperimentStore(path) as store, pytest.raises(OutsideStoreError):
        purge(store, store.key_of("theirs"))
    with ExperimentStore(path) as store:
        assert store.key_of("theirs")
    assert {path.name for path in victim.iterdir()} == {"victim", "thesis"}


def test_a_run_folder_that_is_a_link_is_not_written_to(tmp_path: Path) -> None:
    path, victim = planted(tmp_path, "victim")
    (path.parent / RUNS / "victim").symlink_to(victim)
    with pytest.raises(OutsideStoreError):
        resume_run(path, "theirs", from_step=0)
    assert list(victim.iterdir()) == []


@pytest.mark.parametrize("name", ["log.txt", "faults.txt", "tokens.db", "checkpoints"])
def test_a_file_of_a_run_that_is_a_link_is_not_written_to(tmp_path: Path, name: str) -> None:
    from grpo_engine.errors import OutsideError
    from grpo_engine.run import checkpoint
    from grpo_tui.experiments.db.paths import fault_file, log_file, tokens_file

    calls: dict[str, Callable[[Path], object]] = {
        "log.txt": log_file,
        "faults.txt": fault_file,
        "tokens.db": tokens_file,
        "checkpoints": checkpoint.steps,
    }
    (tmp_path / name).symlink_to("/etc/passwd")
    with pytest.raises((OutsideStoreError, OutsideError), match="leads out of"):
        calls[name](tmp_path)


def test_events_that_wait_in_a_linked_folder_are_left_alone(tmp_path: Path) -> None:
    path, victim = planted(tmp_path, "victim")
    (victim / "victim.jsonl").write_text("mine\n")
    (path.parent / RUNS / "spilled").symlink_to(victim)
    with ExperimentStore(path) as store:
        assert read_in_all(store) == (0, [])
    assert (victim / "victim.jsonl").read_text() == "mine\n"
