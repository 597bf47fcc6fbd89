"""Open the database file: pragmas, lock timeouts and checks for known problems."""

import sqlite3
import stat
import time
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from grpo_engine.errors import shortened
from grpo_tui.experiments.db.machine import network_file_system
from grpo_tui.experiments.errors import NoStoreError, StoreUnusableError

if TYPE_CHECKING:
    from sqlalchemy import Connection

APPLICATION_ID = 0x47525054
LONGEST_VALUE = 1 << 26  # bytes of a value in another program's file
# Pages that name each other again and again have more rows than fit in the file: reading all of
# it takes fewer of SQLite's instructions than ten for each byte.
WORK_UNIT = 100_000  # instructions
WORK_SHARE = WORK_UNIT // 10
FREE_WORK = 100


def open_writer(path: Path, *, create: bool = False) -> sqlite3.Connection:
    """Open for writing, without automatic checkpoints: a recorder makes them."""
    _is_file(path)
    journal = "DELETE" if network_file_system(path.parent) else "WAL"
    return _open(
        path,
        f"mode={'rwc' if create else 'rw'}",
        "journal_size_limit = 0",  # truncates the log when it restarts
        "auto_vacuum = INCREMENTAL",  # takes effect only in an empty file
        f"journal_mode = {journal}",
        "synchronous = NORMAL",
        "foreign_keys = ON",
        "wal_autocheckpoint = 0",
        "cache_size = -16000",
    )


def open_reader(path: Path) -> sqlite3.Connection:
    """Open read-only; works on a read-only medium too."""
    if not _is_file(path):
        raise NoStoreError(f"there is no store at {path}; the first run will create it")
    return _open_to_read(path, check=True)


def open_foreign(path: Path) -> sqlite3.Connection:
    """Open another program's file read-only, hostile as it may be: values and work are limited."""
    if not _is_file(path):
        raise NoStoreError(f"there is no file {path}")
    conn = _open_to_read(path, check=False)
    conn.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_VALUE)
    done, most = count(), FREE_WORK + path.stat().st_size // WORK_SHARE
    conn.set_progress_handler(lambda: next(done) > most, WORK_UNIT)
    return conn


def _open_to_read(path: Path, *, check: bool) -> sqlite3.Connection:
    pragmas = ("query_only = ON", "cache_size = -64000")
    try:
        return _open(path, "mode=ro", *pragmas, check=check)
    except StoreUnusableError as error:
        if not isinstance(error.__cause__, sqlite3.OperationalError):
            raise
    return _open(path, "mode=ro&immutable=1", *pragmas, check=check)


def _open(path: Path, options: str, *pragmas: str, check: bool = True) -> sqlite3.Connection:
    uri = f"file:{quote(str(path))}?{options}"
    with ExitStack() as failure:
        try:
            conn = sqlite3.connect(
                uri, uri=True, timeout=5.0, isolation_level=None, check_same_thread=False
            )
            failure.callback(conn.close)
            if check:
                _check(conn, path)
            for pragma in ("trusted_schema = OFF", *pragmas):
                conn.execute(f"PRAGMA {pragma}")
        except (sqlite3.Error, UnicodeDecodeError) as error:  # an error message can be damaged
            raise StoreUnusableError(
                f"cannot use the store {path}: {error}; choose another --db, or move the file away"
            ) from error
        failure.pop_all()
    return conn


def _is_file(path: Path) -> bool:
    """Whether the file exists; refuse a FIFO or device, which could block for ever when opened."""
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
        raise StoreUnusableError(f"{path} is another program's SQLite file; choose another --db")


def sql_connection(file: sqlite3.Connection) -> "Connection":
    """Return SQLAlchemy's connection for the open file; transactions are begun by hand."""
    from sqlalchemy import StaticPool, create_engine  # not needed for the first frame

    return create_engine(
        "sqlite://",
        creator=lambda: file,
        poolclass=StaticPool,
        isolation_level="AUTOCOMMIT",
        pool_reset_on_return=None,
    ).connect()


def begin(conn: sqlite3.Connection, limit: float = 5.0) -> None:
    """Take the write lock, for which this waits a limited number of seconds.

    SQLite's own wait sleeps for up to 100 ms at a time, which would delay a second recorder.
    """
    deadline = time.monotonic() + limit
    conn.execute("PRAGMA busy_timeout = 0")
    try:
        while True:
            try:
                conn.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.001)
            else:
                return
    finally:
        conn.execute("PRAGMA busy_timeout = 5000")
