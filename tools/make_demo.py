"""Record the bundled demo again (python -m tools.make_demo); pack stores for tests and docs."""

import sqlite3
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

import grpo_tui
from grpo_tui.app.feed.demo import ARCHIVE
from grpo_tui.app.jobs.detach import command
from grpo_tui.experiments.db.paths import FILE_NAME
from grpo_tui.experiments.processes import environment

SETTINGS = ("seed=2", "evaluation.every=20")
# replaces text that would identify the recording machine
ATTEMPT = {"host": "", "boot": "", "pid": 0, "pid_start": ""}


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
