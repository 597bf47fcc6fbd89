"""The data folder and the database in it."""

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from rich.filesize import decimal

from grpo_tui.app.health.checks import Check
from grpo_tui.experiments.db.connection import open_reader
from grpo_tui.experiments.db.machine import network_file_system
from grpo_tui.experiments.db.migrations import too_new, version
from grpo_tui.experiments.db.paths import store_path
from grpo_tui.experiments.db.tables import CURRENT
from grpo_tui.experiments.errors import StoreError

LOW_SPACE = 2 << 30
NO_SPACE = 100 << 20


def checks() -> list[Check]:
    """The folder, the file, and the SQLite that reads it."""
    path, sqlite = store_path(), Check("SQLite", sqlite3.sqlite_version)
    return [folder(path), *file_system(path), database(path), sqlite]


def nearest(path: Path) -> Path:
    """Return the path, or its closest existing parent."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def folder(path: Path) -> Check:
    """Where runs are stored, whether it is writable, and how much space is free."""
    parent = nearest(path.parent)
    free = shutil.disk_usage(parent).free
    is_writable = parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)
    remedy = "Free some space, or choose another file with --db or GRPO_TUI_DB." * (
        free < LOW_SPACE
    )
    if not is_writable:
        remedy = f"{parent} cannot be written: choose another file with --db or GRPO_TUI_DB."
    text = f"{path.parent}, {decimal(free)} free"
    return Check("folder", text, remedy, not is_writable or free < NO_SPACE)


def database(path: Path) -> Check:
    """The database file: absent, sound, or its problem."""
    if not path.exists():
        return Check("database", f"{path.name} will be created by the first run")
    try:
        with closing(open_reader(path)) as connection:
            verdict = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
            number = version(connection)
    except (sqlite3.Error, StoreError) as error:
        verdict = str(error)
    if verdict != "ok":
        remedy = f"Move {path} away or restore a backup; choose another with --db."
        return Check("database", verdict, remedy, stops=True)
    text = f"{path.name}, {decimal(path.stat().st_size)}, version {number}, sound"
    if number < CURRENT:
        text += f"; the next run upgrades it to version {CURRENT}, after a backup"
    is_newer = number > CURRENT
    return Check("database", text, too_new(number, path) * is_newer, is_newer)


def file_system(path: Path) -> list[Check]:
    """A network file system; nothing on a local one."""
    remedy = "Only one process may use the store there; a local disk is faster and safer."
    is_remote = network_file_system(nearest(path.parent))
    return [Check("file system", "over the network", remedy)] if is_remote else []
