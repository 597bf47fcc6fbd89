"""The data folder and the database in it."""

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from grpo_tui.app.health.checks import Check, Level, gib
from grpo_tui.experiments.db.connection import open_reader
from grpo_tui.experiments.db.machine import network_file_system
from grpo_tui.experiments.db.migrations import too_new, version
from grpo_tui.experiments.db.paths import runs_folder, store_path
from grpo_tui.experiments.db.tables import CURRENT
from grpo_tui.experiments.errors import StoreError

ENOUGH = 2 << 30
HARDLY = 100 << 20


def checks(db: str | None = None) -> list[Check]:
    """Report the folder, the file, and the SQLite that reads it."""
    path = store_path(db)
    return [folder(path), *file_system(path), database(path), used(path), sqlite()]


def nearest(path: Path) -> Path:
    """Return the path, or its closest existing parent."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def folder(path: Path) -> Check:
    """Report where runs are stored, whether it is writable, and how much space is free."""
    parent = nearest(path.parent)
    free = shutil.disk_usage(parent).free
    level, remedy = Level.FINE, ""
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        level = Level.STOPS
        remedy = f"{parent} cannot be written: choose another file with --db or GRPO_TUI_DB."
    elif free < ENOUGH:
        level = Level.STOPS if free < HARDLY else Level.WARNING
        remedy = "Free some space, or choose another file with --db or GRPO_TUI_DB."
    return Check(
        area="Store",
        name="folder",
        result=f"{path.parent}, {gib(free)} free",
        level=level,
        remedy=remedy,
        numbers={"path": str(path.parent), "free": free},
    )


def database(path: Path) -> Check:
    """Report the database file: absent, sound, or its problem."""
    if not path.exists():
        return Check(
            area="Store", name="database", result=f"{path.name} will be created by the first run"
        )
    try:
        with closing(open_reader(path)) as connection:
            verdict = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
            number = version(connection)
            journal = str(connection.execute("PRAGMA journal_mode").fetchone()[0])
    except (sqlite3.Error, StoreError) as error:
        return damaged(path, str(error))
    if verdict != "ok":
        return damaged(path, verdict)
    text = f"{path.name}, {gib(path.stat().st_size)}, version {number}, journal {journal}, sound"
    level, remedy = Level.FINE, ""
    if number > CURRENT:
        level = Level.STOPS
        remedy = too_new(number, path)
    elif number < CURRENT:
        text += f"; the next run upgrades it to version {CURRENT}, after a backup"
    numbers: dict[str, float | str | None] = {"path": str(path), "version": number}
    numbers |= {"journal": journal, "sound": True}
    return Check(
        area="Store", name="database", result=text, level=level, remedy=remedy, numbers=numbers
    )


def damaged(path: Path, error: str) -> Check:
    """Report a file that no run can be written to."""
    return Check(
        area="Store",
        name="database",
        result=error,
        level=Level.STOPS,
        remedy=f"Move {path} away or restore a backup; choose another with --db.",
        numbers={"path": str(path), "sound": False},
    )


def file_system(path: Path) -> list[Check]:
    """Report a network file system; None on a local one."""
    remote = network_file_system(nearest(path.parent))
    if not remote:
        return []
    return [
        Check(
            area="Store",
            name="file system",
            result="over the network",
            level=Level.WARNING,
            remedy="Only one process may use the store there; a local disk is faster and safer.",
        )
    ]


def used(path: Path) -> Check:
    """Return the total size of the runs' folders."""
    total = files = 0
    for parent, _, names in os.walk(runs_folder(path)):
        for name in names:
            try:
                total += (Path(parent) / name).lstat().st_size
            except OSError:
                continue  # deleted in the meantime
            files += 1
    text = f"{gib(total)} in {files} files" if files else "none yet"
    return Check(area="Store", name="runs", result=text, numbers={"bytes": total, "files": files})


def sqlite() -> Check:
    """Report the SQLite library."""
    version = sqlite3.sqlite_version
    return Check(area="Store", name="SQLite", result=version, numbers={"version": version})
