"""The bundled demo recording: a small packed store, unpacked for viewing.

`python -m grpo_tui.app.feed.demo` records it again: a real starter run on this machine.
"""

import shutil
import sqlite3
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path, PurePosixPath

import grpo_tui
from grpo_engine.paths import inside
from grpo_tui.app.jobs.detach import command
from grpo_tui.experiments.db.paths import FILE_NAME
from grpo_tui.experiments.processes import environment

RUN = "@last"
ARCHIVE = "demo.tar.xz"
SETTINGS = ("seed=2", "evaluation.every=20")
# replaces text that would identify the recording machine
ATTEMPT = {"host": "", "boot": "", "pid": 0, "pid_start": ""}


class DemoError(RuntimeError):
    """The bundled recording cannot be read."""


def available() -> bool:
    """Return whether the recording is installed."""
    return files("grpo_tui.app").joinpath("assets", ARCHIVE).is_file()


def unpack(folder: Path) -> Path:
    """Unpack the recording into the folder and return the store's path."""
    source = files("grpo_tui.app").joinpath("assets", ARCHIVE)
    if not source.is_file():
        raise DemoError(f"the recording {ARCHIVE} is missing; install grpo-tui again")
    with as_file(source) as path:
        return unpacked(path, folder)


def unpacked(source: Path, folder: Path) -> Path:
    """Unpack an archive of `pack` into the folder and return the store's path."""
    with tarfile.open(source, "r:xz") as archive:
        extract(archive, folder)
    return folder / FILE_NAME


def extract(archive: tarfile.TarFile, folder: Path) -> None:
    """Extract plain files inside the folder; Python 3.11.0 to 3.11.3 lack the safe filter."""
    for member in archive:
        content = archive.extractfile(member)
        if content is None:
            continue
        path = inside(folder, *PurePosixPath(member.name).parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        with content, path.open("wb") as file:
            shutil.copyfileobj(content, file)


def record(target: Path) -> None:
    """Run the starter with everything on and pack the result."""
    with tempfile.TemporaryDirectory(prefix="grpo-tui-demo-") as temporary:
        store = Path(temporary) / FILE_NAME
        changes = [part for setting in SETTINGS for part in ("--set", setting)]
        arguments = command("train", "--preset", "starter", "--db", str(store), *changes)
        subprocess.run(arguments, env=environment(), check=True)
        pack(store, target)


def pack(store: Path, target: Path) -> None:
    """Pack a store with its runs, with folder and host names removed."""
    with tempfile.TemporaryDirectory(prefix="grpo-tui-demo-") as temporary:
        copy = Path(temporary) / FILE_NAME
        source, into = sqlite3.connect(store), sqlite3.connect(copy)
        try:
            source.backup(into)
            _scrub(into, (str(store.parent), str(Path(grpo_tui.__file__).parents[1])))
        finally:
            source.close()
            into.close()
        target.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(target, "w:xz", preset=9) as archive:
            archive.add(copy, copy.name, filter=_anonymous)
            for tokens in sorted(store.parent.glob("runs/*/tokens.db")):
                archive.add(tokens, str(tokens.relative_to(store.parent)), filter=_anonymous)


def _scrub(store: sqlite3.Connection, folders: Sequence[str]) -> None:
    for folder in folders:
        store.execute("UPDATE event SET payload = replace(payload, ?, '')", (f"{folder}/",))
    store.execute(
        f"UPDATE attempt SET {', '.join(f'{name} = ?' for name in ATTEMPT)}",
        tuple(ATTEMPT.values()),
    )
    store.commit()
    store.execute("PRAGMA journal_mode = DELETE")
    store.execute("VACUUM")


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uname = member.gname = ""
    member.uid = member.gid = 0
    return member


if __name__ == "__main__":
    record(Path(grpo_tui.__file__).parent / "app" / "assets" / ARCHIVE)
