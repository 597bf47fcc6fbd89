"""The data folder and the database in it."""

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from app.health.facts import Fact, Level, gib
from experiments.paths import runs_folder, store_path

ENOUGH = 2 << 30
HARDLY = 100 << 20


def facts(given: str | None = None) -> list[Fact]:
    """The folder, the file, and the SQLite that reads it."""
    path = store_path(given)
    return [folder(path), database(path), used(path), sqlite()]


def nearest(path: Path) -> Path:
    """The path, or the closest folder above it that exists."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def folder(path: Path) -> Fact:
    """Where runs are kept, whether one can write there, and how much room is left."""
    place = nearest(path.parent)
    free = shutil.disk_usage(place).free
    level, remedy = Level.FINE, ""
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        level = Level.STOPS
        remedy = f"{place} cannot be written: choose another file with --db or GRPO_TUI_DB."
    elif free < ENOUGH:
        level = Level.STOPS if free < HARDLY else Level.WARNING
        remedy = "Free some space, or choose another file with --db or GRPO_TUI_DB."
    return Fact(
        area="Store",
        name="folder",
        found=f"{path.parent}, {gib(free)} free",
        level=level,
        remedy=remedy,
        numbers={"path": str(path.parent), "free": free},
    )


def database(path: Path) -> Fact:
    """The database file: not there yet, sound, or what is wrong with it."""
    if not path.exists():
        return Fact(area="Store", name="database", found=f"{path.name} will be made by a first run")
    try:
        connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=5)
        with closing(connection):
            verdict = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
            version = int(connection.execute("PRAGMA user_version").fetchone()[0])
            journal = str(connection.execute("PRAGMA journal_mode").fetchone()[0])
    except sqlite3.Error as error:
        verdict, version, journal = str(error), 0, "unknown"
    sound = verdict == "ok"
    return Fact(
        area="Store",
        name="database",
        found=f"{path.name}, {gib(path.stat().st_size)}, version {version}, journal {journal}, "
        + ("sound" if sound else verdict),
        level=Level.FINE if sound else Level.STOPS,
        remedy=""
        if sound
        else f"Move {path} away or restore a copy of it; choose another with --db.",
        numbers={"path": str(path), "version": version, "journal": journal, "sound": sound},
    )


def used(path: Path) -> Fact:
    """How much the runs' folders hold."""
    total = files = 0
    for place, _, names in os.walk(runs_folder(path)):
        for name in names:
            try:
                total += (Path(place) / name).lstat().st_size
            except OSError:
                continue  # removed meanwhile
            files += 1
    words = f"{gib(total)} in {files} files" if files else "none yet"
    return Fact(area="Store", name="runs", found=words, numbers={"bytes": total, "files": files})


def sqlite() -> Fact:
    """The SQLite library."""
    return Fact(area="Store", name="SQLite", found=sqlite3.sqlite_version)
