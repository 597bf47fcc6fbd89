"""Importing runs from another store."""

import lzma
import re
from pathlib import Path

import pytest

from grpo_engine import events as ev
from grpo_tui.experiments import importing
from grpo_tui.experiments.db.paths import log_file, run_folder
from grpo_tui.experiments.errors import ImportRefusedError
from grpo_tui.experiments.importing import import_packed, import_store, is_packed
from grpo_tui.experiments.purge import purge
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.record.recorder import resume_run
from grpo_tui.experiments.recorded_events import events_after
from grpo_tui.experiments.store import ExperimentStore
from tests.experiments.made import (
    ended,
    evaluated,
    hits_of,
    put_all,
    record_run,
    sql,
    started,
    step_events,
)


def facts(path: Path, run: str) -> list[ev.Event]:
    with StoreReader(path) as reader:
        return [fact.event for fact in events_after(reader, reader.resolve(run).key, limit=10_000)]


def test_runs_of_another_store_are_taken_in_whole_and_once(tmp_path: Path) -> None:
    there, here = tmp_path / "other" / "s.db", tmp_path / "s.db"
    record_run(there, name="theirs", last=(evaluated(3),))
    record_run(here, name="theirs")
    store = ExperimentStore(here)
    ((short, _),) = import_store(store, there)
    assert import_store(store, there) == []
    store.close()
    with StoreReader(here) as reader, StoreReader(there) as other:
        run, original = reader.resolve(short), other.resolve("theirs")
        assert (run.name, run.uid, run.status) == ("theirs-2", original.uid, "completed")
        assert run.created_at == original.created_at
        assert reader.settings(run.key) == other.settings(original.key)
        (attempt,), (theirs,) = reader.attempts(run.key), other.attempts(original.key)
        assert attempt == theirs
        view = reader.groups(run.key, step=3)[0]
        tokens = reader.tokens(run.key, view.key)
        assert tokens is not None
        earlier = other.tokens(original.key, other.groups(original.key, step=3)[0].key)
        assert earlier is not None
        assert tokens.rows == earlier.rows
        assert len(hits_of(reader, "yes", run.id)) == 6
    assert facts(here, short) == facts(there, "theirs")


def test_a_run_that_went_on_after_its_import_is_named_with_both_numbers_of_steps(
    tmp_path: Path,
) -> None:
    there, here = tmp_path / "other" / "s.db", tmp_path / "s.db"
    theirs = record_run(there, name="theirs", last=(evaluated(3),))
    record_run(there, name="unchanged")
    said: list[str] = []
    with ExperimentStore(here) as store:
        imported = {name: short for short, name in import_store(store, there)}
        handle = resume_run(there, theirs, from_step=3)
        put_all(handle, started(3), *step_events(4), *step_events(5), ended(5))
        assert handle.close()
        assert import_store(store, there, said.append) == []
        (text,) = said
        assert "theirs" in text
        assert "3 steps" in text
        assert "5" in text
        assert f"runs delete {imported['theirs']}" in text
        purge(store, store.key_of(imported["theirs"]))
        assert [name for _, name in import_store(store, there)] == ["theirs"]
    with StoreReader(here) as reader:
        assert reader.resolve("theirs").step == 5


def test_a_run_that_went_on_here_is_not_called_older(tmp_path: Path) -> None:
    there, here = tmp_path / "other" / "s.db", tmp_path / "s.db"
    record_run(there, name="theirs")
    said: list[str] = []
    with ExperimentStore(here) as store:
        ((short, _),) = import_store(store, there)
        handle = resume_run(here, short, from_step=3)
        put_all(handle, started(3), *step_events(4), ended(4))
        assert handle.close()
        assert import_store(store, there, said.append) == []
    assert said == []


def test_a_store_in_the_same_folder_gives_its_runs_and_keeps_its_files(tmp_path: Path) -> None:
    there, here = tmp_path / "rescued.db", tmp_path / "s.db"
    record_run(there, name="theirs")
    with StoreReader(there) as reader:
        folder = run_folder(there, reader.resolve("theirs").id)
    log_file(folder).write_text("line")
    with ExperimentStore(here) as store:
        ((short, _),) = import_store(store, there)
        assert short != folder.name
        purge(store, store.key_of(short))
    assert log_file(folder).exists()


def test_an_attempt_without_an_end_ends_in_the_import_at_its_last_sign_of_life(
    tmp_path: Path,
) -> None:
    there, here = tmp_path / "other" / "s.db", tmp_path / "s.db"
    record_run(there, name="theirs")
    sql(there, "UPDATE attempt SET ended_at = NULL, heartbeat = '2026-01-02T03:04:05'")
    store = ExperimentStore(here)
    ((short, _),) = import_store(store, there)
    store.close()
    with StoreReader(here) as reader:
        (attempt,) = reader.attempts(reader.resolve(short).key)
    assert attempt.ended_at == attempt.heartbeat == "2026-01-02T03:04:05"


def test_what_is_no_run_is_refused_with_its_name(tmp_path: Path) -> None:
    store = ExperimentStore(tmp_path / "s.db")
    (tmp_path / "empty.db").touch()
    (tmp_path / "text.db").write_text("no database at all" * 100)
    for file, words in (
        (tmp_path / "nowhere.db", "there is no file"),
        (tmp_path, "SQLite file of a store"),
        (tmp_path / "s.db", "is the current store"),
        (tmp_path / "empty.db", "is empty"),
        (tmp_path / "text.db", "not a database"),
    ):
        with pytest.raises(ImportRefusedError, match=words) as refusal:
            import_store(store, file)
        # remedies for the current store are none here
        assert not re.search("--db|the first run", str(refusal.value))
    store.close()


def test_a_store_packed_by_xz_is_imported_and_no_temporary_file_is_named(tmp_path: Path) -> None:
    there, packed = tmp_path / "theirs.db", tmp_path / "theirs.db.xz"
    record_run(there, name="theirs", last=(evaluated(3),))
    packed.write_bytes(lzma.compress(there.read_bytes()))
    with ExperimentStore(tmp_path / "s.db") as store:
        assert is_packed(packed)
        assert not is_packed(there)
        ((short, name),) = import_packed(store, packed)
    assert name == "theirs"
    with StoreReader(tmp_path / "s.db") as reader:
        assert reader.run(reader.resolve(short).key).origin == f"import of {packed}"
    kinds = (ev.StepFinished, ev.EvaluationFinished)  # tokens lie beside the store
    here, original = (
        [event for event in facts(*pair) if isinstance(event, kinds)]
        for pair in ((tmp_path / "s.db", short), (there, "theirs"))
    )
    assert here == original
    assert len(here) == 4


def test_a_packed_store_that_is_damaged_or_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = lzma.compress(bytes(3_000_000))
    (tmp_path / "cut.db.xz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "large.db.xz").write_bytes(whole)
    (tmp_path / "text.db.xz").write_bytes(lzma.compress(b"no database at all" * 100))
    monkeypatch.setattr(importing, "LARGEST", 2_000_000)
    with ExperimentStore(tmp_path / "s.db") as store:
        for name, words in (
            ("cut", "cannot be unpacked"),
            ("large", "more than 2 MB"),
            ("text", "text.db.xz cannot be imported: .*not a database"),
        ):
            with pytest.raises(ImportRefusedError, match=words):
                import_packed(store, tmp_path / f"{name}.db.xz")
