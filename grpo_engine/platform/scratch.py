"""Temporary folders that do not outlive their process, even if it is killed."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from grpo_engine.paths import remove
from grpo_engine.platform.private import temporary_folder


@contextmanager
def scratch(purpose: str) -> Iterator[Path]:
    """A temporary folder, removed at the end, or else when the next one is made."""
    parent = temporary_folder()
    if parent is None:
        with tempfile.TemporaryDirectory(prefix=f"grpo-tui-{purpose}-") as name:
            yield Path(name)
        return
    _sweep(parent)
    folder, lock = _locked(parent, purpose)
    try:
        yield folder
    finally:
        remove(parent, folder.name, ignore_errors=True)
        os.close(lock)


def _locked(parent: Path, purpose: str) -> tuple[Path, int]:
    """Make a folder and lock it; a sweep may remove it in between, so try again."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f"{purpose}-", suffix=".scratch", dir=parent))
        try:
            lock = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:
            continue
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            return folder, lock
        os.close(lock)


def _sweep(parent: Path) -> None:
    """Remove the folders of processes that have ended: nobody holds their locks."""
    for folder in parent.glob("*.scratch"):
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove(parent, folder.name, ignore_errors=True)
        except OSError:
            pass
        finally:
            os.close(lock)
