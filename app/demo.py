"""The bundled recording: a small store, packed, that is unpacked to look at."""

import tarfile
from importlib.resources import as_file, files
from pathlib import Path

RUN = "@last"
ARCHIVE = "demo.tar.xz"
MEMBERS = ("grpo-tui.db", "runs")


class DemoError(RuntimeError):
    """The bundled recording cannot be read."""


def available() -> bool:
    """Whether the recording was installed."""
    return files("app").joinpath("assets", ARCHIVE).is_file()


def unpack(folder: Path) -> Path:
    """Unpack the recording into the folder and give the store's path."""
    source = files("app").joinpath("assets", ARCHIVE)
    if not source.is_file():
        raise DemoError(f"the recording {ARCHIVE} is missing; install grpo-tui again")
    with as_file(source) as path, tarfile.open(path, "r:xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / "grpo-tui.db"


def pack(store: Path, run: str, target: Path) -> None:
    """Write a store, which should hold this run alone, as the recording."""
    import sqlite3
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / "grpo-tui.db"
        source, into = sqlite3.connect(store), sqlite3.connect(copy)
        try:
            source.backup(into)
            into.execute("PRAGMA journal_mode = DELETE")
            into.execute("VACUUM")
        finally:
            source.close()
            into.close()
        target.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(target, "w:xz", preset=9) as archive:
            archive.add(copy, "grpo-tui.db")
            tokens = store.parent / "runs" / run / "tokens.db"
            archive.add(tokens, f"runs/{run}/tokens.db")
