"""The log is moved into the store by recorders only, and never while it can be started again.

SQLite 3.7.0 to 3.51.2 can lose commits when one process starts the write-ahead log again between a
checkpoint's look at its length and the copying. `StoreFile.checkpoint` reads meanwhile.
"""

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from grpo_tui.experiments.db.connection import open_writer
from grpo_tui.experiments.record import store_file
from grpo_tui.experiments.record.store_file import StoreFile
from grpo_tui.experiments.store import ExperimentStore

COMMIT = (
    "import sys; from pathlib import Path\n"
    "from grpo_tui.experiments.db.connection import begin, open_writer\n"
    "conn = open_writer(Path(sys.argv[1]))\n"
    "begin(conn); conn.execute('INSERT INTO extra (x) VALUES (randomblob(900))')\n"
    "conn.execute('COMMIT')\n"
)
WRITER = (
    "import sys; from pathlib import Path\n"
    "from grpo_tui.experiments.db.connection import begin\n"
    "from grpo_tui.experiments.record import store_file\n"
    "from grpo_tui.experiments.store import ExperimentStore\n"
    "store_file.LOG_BYTES = 160_000\n"
    "file = store_file.StoreFile(ExperimentStore(Path(sys.argv[1])))\n"
    "for _ in range(int(sys.argv[2])):\n"
    "    begin(file.connection)\n"
    "    file.connection.executemany(\n"
    "        'INSERT INTO extra (x) VALUES (randomblob(900))', [()] * 20)\n"
    "    file.connection.execute('COMMIT')\n"
    "    file.checkpoint_if_long()\n"
    "file.close()\n"
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "s.db"
    ExperimentStore(path).close()
    with closing(open_writer(path)) as conn:
        conn.execute("CREATE TABLE extra (id INTEGER PRIMARY KEY, x BLOB UNIQUE)")
    return path


@pytest.fixture
def file(path: Path) -> Iterator[StoreFile]:
    file = StoreFile(ExperimentStore(path))
    yield file
    file.close()


def commit(conn: sqlite3.Connection, rows: int) -> None:
    conn.execute("BEGIN IMMEDIATE")
    conn.executemany("INSERT INTO extra (x) VALUES (randomblob(900))", [()] * rows)
    conn.execute("COMMIT")


def log(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def salts(path: Path) -> bytes:
    """The two numbers in the log's header that change when it is started again."""
    return log(path).read_bytes()[16:24]


def commit_elsewhere(path: Path) -> None:
    subprocess.run([sys.executable, "-P", "-c", COMMIT, str(path)], check=True)


def test_the_log_is_moved_once_it_is_long(
    file: StoreFile, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_file, "LOG_BYTES", 100 * 4120)
    starts = set()
    for _ in range(60):  # 10 to 60 pages each
        commit(file.connection, 20)
        file.checkpoint_if_long()
        starts.add(salts(path))
    assert log(path).stat().st_size < 200 * 4120
    assert len(starts) > 5


def test_the_log_is_cut_when_it_is_started_again(file: StoreFile, path: Path) -> None:
    commit(file.connection, 400)  # 100 pages of rows, and those of the index
    size = log(path).stat().st_size
    assert size > 100 * 4120
    file.checkpoint()
    assert log(path).stat().st_size == size  # moved, and not started again
    commit_elsewhere(path)
    assert log(path).stat().st_size < size / 4


def test_no_commit_starts_the_log_again_while_it_is_moved(file: StoreFile, path: Path) -> None:
    commit(file.connection, 20)
    before = salts(path)
    with reading(file):
        assert file.connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[0] == 0
        commit_elsewhere(path)
        assert salts(path) == before
    commit(file.connection, 1)  # some of it is not moved yet
    assert salts(path) == before


def test_nothing_is_moved_where_a_commit_can_start_the_log_again(
    file: StoreFile, path: Path
) -> None:
    commit(file.connection, 20)
    file.checkpoint()
    before, moved_at = salts(path), path.stat().st_mtime_ns

    def commit_between(statement: str) -> None:
        if "wal_checkpoint" in statement:
            commit_elsewhere(path)

    file.connection.set_trace_callback(commit_between)
    file.checkpoint()
    file.connection.set_trace_callback(None)
    assert salts(path) != before  # the commit came after all was moved
    assert path.stat().st_mtime_ns == moved_at
    file.checkpoint()
    assert path.stat().st_mtime_ns > moved_at


def reading(file: StoreFile) -> "closing[sqlite3.Connection]":
    """The second connection as it is during a checkpoint; closed at the end of the block."""
    file._reader.execute("BEGIN")
    file._reader.execute("SELECT count(*) FROM sqlite_master").fetchall()
    again, file._reader = file._reader, open_writer(file.store.path)
    return closing(again)


@pytest.mark.slow
def test_two_recorders_a_reader_and_a_third_writer_lose_nothing(path: Path) -> None:
    rounds = 150
    running = [
        subprocess.Popen([sys.executable, "-P", "-c", WRITER, str(path), str(rounds)])
        for _ in range(2)
    ]
    written = 0
    while any(process.poll() is None for process in running):
        with closing(open_writer(path)) as conn:  # opens and closes, as purge and the app do
            commit(conn, 1)
            written += 1
            assert conn.execute("SELECT count(*) FROM extra").fetchone()[0] >= written
    assert [process.returncode for process in running] == [0, 0]
    with closing(open_writer(path)) as conn:
        assert conn.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert conn.execute("SELECT count(*) FROM extra").fetchone() == (40 * rounds + written,)
