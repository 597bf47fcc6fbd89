"""Temporary folders that do not outlive their process, even if it is killed."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from grpo_engine.paths import remove
from grpo_engine.platform.private import temporary_folder

SUFFIX: Final = ".scratch"


@contextmanager
def scratch(purpose: str) -> Iterator[Path]:
    """A temporary folder, removed at the end, or else when the next one is made."""
    folder, lock = locked_folder(purpose)
    try:
        yield folder
    finally:
        remove(folder.parent, folder.name, ignore_errors=True)
        os.close(lock)


def locked_folder(purpose: str) -> tuple[Path, int]:
    """A new folder, and its lock, which ends with the process."""
    locked_count()
    while True:  # another process may remove a folder before it is locked
        folder = Path(tempfile.mkdtemp(prefix=f"{purpose}-", suffix=SUFFIX, dir=temporary_folder()))
        if (lock := try_lock(folder)) is not None:
            return folder, lock


def locked_count(purpose: str = "") -> int:
    """The number of locked folders for a purpose, or all; those without a lock are removed."""
    parent, count = temporary_folder(), 0
    for path in parent.glob(f"{purpose}*{SUFFIX}") if parent else ():
        if (lock := try_lock(path)) is None:
            count += 1
        else:
            remove(path.parent, path.name, ignore_errors=True)
            os.close(lock)
    return count


def try_lock(folder: Path) -> int | None:
    """Lock a folder; None if another process has locked or removed it."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(lock).st_nlink:
            return lock
    except OSError:
        pass
    os.close(lock)
    return None
