"""Open the database file: pragmas, lock timeouts and checks for known problems."""

import sqlite3
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from grpo_engine.errors import shortened
from grpo_tui.experiments.db.machine import network_file_system
from grpo_tui.experiments.errors import NoStoreError, StoreUnusableError

if TYPE_CHECKING:
    from sqlalchemy import Connection

APPLICATION_ID = 0x47525054


def open_writer(path: Path, *, create: bool = False) -> sqlite3.Connection:
    """Open for writing, without automatic checkpoints: a recorder makes them."""
    _is_file(path)
    uri = f"file:{quote(str(path))}?mode={'rwc' if create else 'rw'}"
    try:
        conn = sqlite3.connect(
            uri, uri=True, timeout=5.0, isolation_level=None, check_same_thread=False
        )
    except sqlite3.Error as error:
        raise StoreUnusableError(f"cannot open the store {path}: {error}") from error
    try:
        _check(conn, path)
        remote = network_file_system(path.parent)
        for pragma in (
            "journal_size_limit = 0",  # the log is cut when it is started again
            "auto_vacuum = INCREMENTAL",  # takes effect only in an empty file
            f"journal_mode = {'DELETE' if remote else 'WAL'}", "synchronous = NORMAL",
            "foreign_keys = ON", "trusted_schema = OFF", "wal_autocheckpoint = 0",
            "cache_size = -16000",
        ):  # fmt: skip
            conn.execute(f"PRAGMA {pragma}")
    except sqlite3.Error as error:
        conn.close()
        raise StoreUnusableError(_message(path, error)) from error
    return conn


def open_reader(path: Path) -> sqlite3.Connection:
    """Open read-only; works on a read-only medium too."""
    if not _is_file(path):
        raise NoStoreError(f"there is no store at {path}; the first run will create it")
    base = f"file:{quote(str(path))}"
    failure: Exception | None = None
    for mode in ("mode=ro", "mode=ro&immutable=1"):
        conn = sqlite3.connect(
            f"{base}?{mode}", uri=True, timeout=5.0, isolation_level=None, check_same_thread=False
        )
        try:
            _check(conn, path)
            conn.execute("PRAGMA query_only = ON")
            conn.execute("PRAGMA trusted_schema = OFF")
            conn.execute("PRAGMA cache_size = -64000")
        except (sqlite3.Error, UnicodeDecodeError) as error:  # a damaged message, too
            conn.close()
            failure = error
            if not isinstance(error, sqlite3.OperationalError):
                break
        else:
            return conn
    raise StoreUnusableError(_message(path, failure)) from failure


def _is_file(path: Path) -> bool:
    """Whether the file exists; refuse what is none: opening a FIFO would wait for its other end."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StoreUnusableError(
            f"the store {shortened(str(path))} cannot be used ({error.strerror}); choose another "
            "--db"
        ) from error
    if not stat.S_ISREG(mode):
        raise StoreUnusableError(f"{path} is not a file; give the SQLite file of a store")
    return True


def _check(conn: sqlite3.Connection, path: Path) -> None:
    mark = conn.execute("PRAGMA application_id").fetchone()[0]
    if mark == APPLICATION_ID:
        return
    tables = conn.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if mark or tables:
        conn.close()
        raise StoreUnusableError(f"{path} is another program's SQLite file; choose another --db")


def _message(path: Path, error: Exception | None) -> str:
    if "not a database" in str(error):
        return f"{path} is not a SQLite file; choose another --db or move it away"
    return f"cannot use the store {path}: {error}"


def sql_connection(file: sqlite3.Connection) -> "Connection":
    """Return SQLAlchemy's connection for the open file; transactions are begun by hand."""
    from sqlalchemy import StaticPool, create_engine  # the first frame does without

    return create_engine(
        "sqlite://", creator=lambda: file, poolclass=StaticPool, isolation_level="AUTOCOMMIT",
        pool_reset_on_return=None,
    ).connect()  # fmt: skip


def begin(conn: sqlite3.Connection, limit: float = 5.0) -> float:
    """Take the write lock, polling every 2 ms, and return the seconds it took.

    SQLite's own busy handler sleeps up to 100 ms at a time, which would delay a second recorder.
    """
    start = time.perf_counter()
    conn.execute("PRAGMA busy_timeout = 0")
    try:
        while True:
            try:
                conn.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.perf_counter() - start > limit:
                    raise
                time.sleep(0.001)
            else:
                return time.perf_counter() - start
    finally:
        conn.execute("PRAGMA busy_timeout = 5000")
