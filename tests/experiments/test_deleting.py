"""A deleted run is hidden at once, comes back until its purge, and survives a crash in between."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.paths import remove
from grpo_tui.experiments import purge as purging
from grpo_tui.experiments.db.paths import run_folder
from grpo_tui.experiments.db.tables import CURRENT
from grpo_tui.experiments.errors import RunActiveError, RunNotFoundError
from grpo_tui.experiments.importing import import_store
from grpo_tui.experiments.purge import purge_deleted
from grpo_tui.experiments.queue import RunQueue
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.record.recorder import start_run
from grpo_tui.experiments.store import ExperimentStore
from tests.experiments.made import CONFIG, hits_of, integrity, put_all, record_run, started
from tests.experiments.test_migrations import first_version
from tests.patience import PATIENCE


@pytest.fixture
def path(tmp_path: Path) -> Path:
    for name in ("gone", "other"):
        record_run(tmp_path / "s.db", name=name)
    return tmp_path / "s.db"


@pytest.fixture
def store(path: Path) -> Iterator[ExperimentStore]:
    with ExperimentStore(path) as opened:
        yield opened


def names(path: Path) -> list[str]:
    with StoreReader(path) as reader:
        return sorted(run.name for run in reader.runs(archived=True))


def test_no_question_finds_a_deleted_run(path: Path, store: ExperimentStore) -> None:
    gone = store.key_of("gone")
    queue = RunQueue(store)
    queue.sweep("again", {}, [({}, store.run_row(gone).config)])
    record_run(path, name="clone", tree={**CONFIG, "seed": 1})
    with store.transaction() as conn:
        conn.exec_driver_sql(f"UPDATE run SET parent_id = {gone} WHERE name = 'clone'")
    store.delete([gone])
    with StoreReader(path) as reader:
        assert [run.name for run in reader.runs(archived=True)] == ["clone", "other"]
        assert [run.name for run in reader.runs("gone", archived=True)] == []
        for ref in ("gone", "gon", store.run_row(gone).short):
            with pytest.raises(RunNotFoundError):
                reader.resolve(ref)
        with pytest.raises(RunNotFoundError):
            reader.run(gone)
        clone = reader.resolve("clone")
        assert clone.parent is None
        assert reader.run(clone.key).descent == ""
        assert reader.deleted() == 1
        assert reader.resolve("@last").name == "clone"
        store.delete([clone.key])
        assert reader.resolve("@last").name == "other"
    other = store.key_of("other")
    item = queue.take()
    assert item is not None
    finished = queue.repeats(item)
    assert finished is not None
    assert finished.id == other


def test_the_runs_deleted_last_come_back_with_everything(
    path: Path, store: ExperimentStore
) -> None:
    folder = run_folder(path, store.run_row(store.key_of("gone")).short)
    store.delete([store.key_of("gone")])
    assert folder.is_dir()
    assert store.restore() == ("gone",)
    assert store.restore() == ()
    with StoreReader(path) as reader:
        run = reader.resolve("gone")
        assert reader.metric_series(run.key, "reward").values == (0.1, 0.2, 0.3)
        hits = hits_of(reader, "yes", "gone")
        assert {one.run for one in reader.groups_by_key(hit.group for hit in hits)} == {run.key}


def test_an_active_run_is_not_deleted_and_none_beside_it(path: Path) -> None:
    handle = start_run(path, CONFIG, name="training")
    put_all(handle, started())
    assert handle.flush(PATIENCE)
    with ExperimentStore(path) as store:
        both = [store.key_of("gone"), store.key_of("training")]
        with pytest.raises(RunActiveError, match="training is running"):
            store.delete(both)
    assert handle.close()
    assert names(path) == ["gone", "other", "training"]


def test_a_deleted_run_is_not_resumed_or_changed(store: ExperimentStore) -> None:
    gone = store.key_of("gone")
    store.delete([gone])
    for change in (
        lambda: store.start_attempt(gone, 3),
        lambda: store.change(gone, note="text"),
        lambda: store.delete([gone]),
    ):
        with pytest.raises(RunNotFoundError):
            change()


def test_a_purge_removes_rows_and_files_of_deleted_runs_only(
    path: Path, store: ExperimentStore
) -> None:
    gone = store.key_of("gone")
    folder = run_folder(path, store.run_row(gone).short)
    store.delete([gone])
    assert purge_deleted(store) == (1, [])
    assert not folder.exists()
    assert names(path) == ["other"]
    with StoreReader(path) as reader, store.transaction() as conn:
        assert integrity(reader) == "ok"
        rows = conn.exec_driver_sql(f"SELECT * FROM step WHERE run_id = {gone}")
        assert rows.all() == []


@pytest.mark.parametrize("with_files", [False, True])
def test_a_purge_that_is_cut_off_shows_no_half_of_a_run_and_goes_on_later(
    path: Path, store: ExperimentStore, monkeypatch: pytest.MonkeyPatch, with_files: bool
) -> None:
    def cut_off(*names: Any, **options: Any) -> None:
        if with_files:
            remove(*names, **options)
        raise KeyboardInterrupt

    folder = run_folder(path, store.run_row(store.key_of("gone")).short)
    store.delete([store.key_of("gone")])
    with monkeypatch.context() as patch:
        patch.setattr(purging, "remove", cut_off)
        with pytest.raises(KeyboardInterrupt):
            purge_deleted(store)
    assert names(path) == ["other"]
    assert store.restore() == ()
    assert purge_deleted(store) == (1, [])
    assert purge_deleted(store) == (0, [])
    assert not folder.exists()
    with StoreReader(path) as reader:
        assert integrity(reader) == "ok"


def test_a_store_from_before_deletion_is_read_and_takes_part_once_it_is_written_to(
    tmp_path: Path,
) -> None:
    path = tmp_path / "s.db"
    first_version(path)
    with StoreReader(path) as reader:
        assert [run.name for run in reader.runs()] == ["old"]
        assert reader.deleted() == 0
        with ExperimentStore(path) as store:
            store.delete([reader.resolve("old").key])
        assert reader.schema == CURRENT
        assert reader.runs() == ()
        assert reader.deleted() == 1


def test_a_deleted_run_is_not_imported(path: Path, store: ExperimentStore, tmp_path: Path) -> None:
    store.delete([store.key_of("gone")])
    with ExperimentStore(tmp_path / "to" / "s.db") as target:
        taken = import_store(target, path)
    assert [name for _, name in taken] == ["other"]
