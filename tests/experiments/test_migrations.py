"""Old files keep their data through the last migration; newer ones open read-only."""

import lzma
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from grpo_tui.experiments.db.tables import CURRENT, MIGRATIONS
from grpo_tui.experiments.db.texts import now_iso
from grpo_tui.experiments.errors import StoreReadOnlyError, StoreUnusableError
from grpo_tui.experiments.reader import StoreReader
from grpo_tui.experiments.record.recorder import start_run
from grpo_tui.experiments.store import ExperimentStore
from tests.experiments.made import CONFIG, finished, hits_of, record_run, recorded, sql, started

FIRST = 1
FIRST_STORE = Path(__file__).parents[1] / "old" / "first_schema.db.xz"


def first_version(path: Path) -> None:
    """A recorded run in a store of the first schema version."""
    path.write_bytes(lzma.decompress(FIRST_STORE.read_bytes()))


def tables(path: Path) -> set[str]:
    return {name for (name,) in sql(path, "SELECT name FROM sqlite_master WHERE type = 'table'")}


def test_a_database_from_the_first_migration_opens_after_the_last_with_its_data(
    path: Path,
) -> None:
    first_version(path)
    with StoreReader(path) as reader:
        assert reader.resolve("old").step == 2
        assert len(hits_of(reader, "yes")) == 4
    store = ExperimentStore(path)
    assert store.copied_to is not None
    store.close()
    with StoreReader(path) as reader:
        run = reader.resolve("old")
        assert reader.schema == CURRENT
        assert reader.metric_series(run.key, "reward").values == (0.1, 0.2)
        assert len(hits_of(reader, "yes")) == 4
        assert len(hits_of(reader, "1 + 1")) == 8
    assert sql(store.copied_to, "PRAGMA user_version") == [(FIRST,)]
    assert sql(store.copied_to, "SELECT name FROM run") == [("old",)]
    recorded(path, started(), finished(1))


def test_a_migration_is_refused_while_a_run_is_recorded(path: Path) -> None:
    first_version(path)
    sql(path, f"UPDATE attempt SET ended_at = NULL, heartbeat = '{now_iso()}'")
    with pytest.raises(StoreReadOnlyError, match="old is being recorded"):
        ExperimentStore(path)


def test_a_newer_store_is_read_only_with_a_message(path: Path) -> None:
    record_run(path, name="future")
    sql(path, f"PRAGMA user_version = {CURRENT + 1}")
    with StoreReader(path) as reader:
        assert reader.resolve("future").step == 3
        assert "newer grpo-tui" in reader.note
    with pytest.raises(StoreReadOnlyError, match="upgrade grpo-tui"):
        start_run(path, CONFIG)
    with pytest.raises(StoreReadOnlyError):
        ExperimentStore(path)


def test_a_failing_migration_leaves_the_file_as_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_version(path)
    broken = MIGRATIONS["m003_queue"] + "CREATE TABLE run (twice);"
    monkeypatch.setitem(MIGRATIONS, "m003_queue", broken)
    with pytest.raises(StoreUnusableError, match="says that its schema is 1, but it does not fit"):
        ExperimentStore(path)
    assert sql(path, "PRAGMA user_version") == [(FIRST,)]
    assert "sweep" not in tables(path)


def test_a_store_whose_number_was_set_back_is_refused_in_words_and_left_alone(
    path: Path,
) -> None:
    record_run(path)
    before = tables(path)
    sql(path, "PRAGMA user_version = 1")
    with pytest.raises(StoreUnusableError, match="restore a backup"):
        ExperimentStore(path)
    assert tables(path) == before


def shape(conn: sqlite3.Connection) -> dict[str, dict[str, object]]:
    """Each table by name: its columns, keys, indices and whether it has row ids."""
    found = {}
    tables = conn.execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND "
        "name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    )
    for table, source in tables.fetchall():
        info = conn.execute(f"PRAGMA table_info({table})").fetchall()
        keys = conn.execute(f"PRAGMA foreign_key_list({table})").fetchall()
        indices = conn.execute(f"PRAGMA index_list({table})").fetchall()
        found[table] = {
            "columns": {
                name: (kind, bool(needed) and not key) for _, name, kind, needed, _, key in info
            },
            "key": [name for key, name in sorted((row[5], row[1]) for row in info) if key],
            "points": sorted(
                (name, other, there, gone) for _, _, other, name, there, _, gone, _ in keys
            ),
            # in their order: SQLite chooses by it among equals
            "indices": [index(conn, *row[1:5]) for row in indices if row[3] != "pk"],
            "rowid": "WITHOUT ROWID" not in source,
        }
    return found


def index(
    conn: sqlite3.Connection, name: str, unique: int, origin: str, partial: int
) -> tuple[str, int, tuple[str, ...], str]:
    """An index's name (if explicit), uniqueness, columns and condition."""
    columns = tuple(row[2] for row in conn.execute(f"PRAGMA index_info({name})"))
    sql = conn.execute("SELECT sql FROM sqlite_master WHERE name = ?", (name,)).fetchone()[0]
    condition = sql.partition(" WHERE ")[2] if partial else ""
    return name if origin == "c" else "", unique, columns, condition


def test_the_declared_tables_are_what_the_migrations_make(tmp_path: Path) -> None:
    ExperimentStore(tmp_path / "new.db").close()
    first_version(tmp_path / "old.db")
    ExperimentStore(tmp_path / "old.db").close()
    with (
        closing(sqlite3.connect(tmp_path / "new.db")) as new,
        closing(sqlite3.connect(tmp_path / "old.db")) as old,
    ):
        assert shape(new) == shape(old)
        query = "SELECT n, name FROM migration"
        assert new.execute(query).fetchall() == old.execute(query).fetchall()
        others = "SELECT name FROM sqlite_master WHERE type IN ('trigger', 'view')"
        assert new.execute(others).fetchall() == []
