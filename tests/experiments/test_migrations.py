"""Old files open after the last migration with their data; newer ones are read only."""

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlmodel import SQLModel

from experiments.db import schema
from experiments.db import tables as tables_module
from experiments.db.connection import begin, open_writer, sqlite_warnings
from experiments.db.migrations import CURRENT, MIGRATIONS, migrate, version
from experiments.errors import StoreReadOnlyError
from experiments.reader import StoreReader
from experiments.record.recorder import Recorder
from experiments.store import ExperimentStore
from tests.experiments.made import CONFIG, finished, put_all, record_run, started

FIRST = 1
assert tables_module


def first_version(path: Path) -> None:
    """A store with a recorded run, taken back to what the first migration made."""
    record_run(path, steps=2, name="old")
    with closing(open_writer(path)) as conn:
        begin(conn)
        for table in ("rollout_words", "prompt_words", "queue_item"):
            conn.execute(f"DROP TABLE {table}")
        conn.execute("DROP INDEX run_list")
        conn.execute("DROP INDEX run_config")
        conn.execute("DROP INDEX run_sweep")
        conn.execute("DROP INDEX rollout_of_group")
        conn.execute("CREATE INDEX rollout_group_id ON rollout (group_id)")
        conn.execute("ALTER TABLE run DROP COLUMN sweep_id")
        conn.execute("DROP TABLE sweep")
        conn.execute("DELETE FROM migration WHERE n > 1")
        conn.execute(f"PRAGMA user_version = {FIRST}")
        conn.execute("COMMIT")


def columns(conn: sqlite3.Connection) -> dict[str, list[tuple[str, str, int, int]]]:
    names = conn.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    return {
        name: [
            (row[1], row[2], row[3], row[5]) for row in conn.execute(f"PRAGMA table_info({name})")
        ]
        for (name,) in names
    }


def test_taking_a_store_back_gives_exactly_the_first_schema(tmp_path: Path) -> None:
    first_version(tmp_path / "old.db")
    with closing(open_writer(tmp_path / "fresh.db", create=True)) as conn:
        migrate(conn, tmp_path / "fresh.db", upto=FIRST)
        wanted = columns(conn)
    with closing(sqlite3.connect(tmp_path / "old.db")) as conn:
        assert columns(conn) == wanted


def test_a_database_from_the_first_migration_opens_after_the_last_with_its_data(
    tmp_path: Path,
) -> None:
    path = tmp_path / "s.db"
    first_version(path)
    with closing(StoreReader(path)) as reader:
        assert reader.resolve("old").step == 2
        assert len(list(reader.search("yes", mode="words"))) == 4
    store = ExperimentStore(path)
    assert store.copied_to is not None
    store.close()
    with closing(StoreReader(path)) as reader:
        run = reader.resolve("old")
        assert reader.schema == CURRENT
        assert reader.metric_series(run.key, "reward").values == (0.1, 0.2)
        assert len(list(reader.search("yes", run=run.key))) == 4
        assert len(list(reader.search("1 + 1", run=run.key, limit=100))) == 8
    with closing(sqlite3.connect(store.copied_to)) as conn:
        assert version(conn) == FIRST
        assert conn.execute("SELECT name FROM run").fetchall() == [("old",)]
    recorder = Recorder(path)
    handle = recorder.start_run(CONFIG)
    put_all(handle, started(), finished(1))
    assert handle.close()
    recorder.close()


def test_a_migration_is_refused_while_a_run_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    first_version(path)
    with closing(sqlite3.connect(path)) as conn, conn:
        conn.execute("UPDATE attempt SET ended_at = NULL")
    store = ExperimentStore(path)
    assert "old is being recorded" in store.read_only
    with pytest.raises(StoreReadOnlyError):
        store.set_note(1, "text")
    store.close()


def test_a_newer_store_is_read_only_with_a_message(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    record_run(path, name="future")
    with closing(sqlite3.connect(path)) as conn:
        conn.execute(f"PRAGMA user_version = {CURRENT + 1}")
    with closing(StoreReader(path)) as reader:
        assert reader.resolve("future").step == 3
        assert "newer grpo-tui" in reader.note
    with pytest.raises(StoreReadOnlyError, match="upgrade grpo-tui"):
        Recorder(path)
    store = ExperimentStore(path)
    with pytest.raises(StoreReadOnlyError):
        store.rename(1, "other")
    store.close()


def test_a_failing_migration_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.db"
    first_version(path)
    monkeypatch.setattr(schema, "QUEUE", schema.QUEUE + "CREATE TABLE run (twice);")
    with pytest.raises(sqlite3.OperationalError):
        ExperimentStore(path)
    with closing(sqlite3.connect(path)) as conn:
        # the second migration is complete, the third has left nothing
        assert version(conn) == 2
        assert "sweep" not in columns(conn)


def test_the_models_say_what_the_migrations_made(tmp_path: Path) -> None:
    ExperimentStore(tmp_path / "s.db").close()
    with closing(sqlite3.connect(tmp_path / "s.db")) as conn:
        made = {name: {(col[0], bool(col[2])) for col in cols if not col[3]}
                for name, cols in columns(conn).items()}  # fmt: skip
        keys = {name: [col[0] for col in sorted(cols, key=lambda col: col[3]) if col[3]]
                for name, cols in columns(conn).items()}  # fmt: skip
    for name, table in SQLModel.metadata.tables.items():
        assert {(column.name, not column.nullable) for column in table.columns
                if not column.primary_key} == made[name]  # fmt: skip
        assert [column.name for column in table.primary_key.columns] == keys[name]
    own = {name for name in made if not re.search("_words|^sqlite_|^migration$", name)}
    assert own == set(SQLModel.metadata.tables)


def test_migrations_are_numbered_in_order() -> None:
    assert [m.name[:4] for m in MIGRATIONS] == [f"m{n:03d}" for n in range(1, CURRENT + 1)]
    assert all(m.name == m.apply.__name__ for m in MIGRATIONS)


def test_sqlite_versions_with_corruption_bugs_are_named() -> None:
    assert "WAL-reset" in sqlite_warnings((3, 40, 1))[0]
    assert sqlite_warnings((3, 44, 6)) == ()
    assert sqlite_warnings((3, 51, 3)) == ()
    assert len(sqlite_warnings((3, 35, 2))) == 2
