"""Folders that only this user can write, and files in them that are complete: for native code."""

import os
import stat
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Final

HASH_BYTES: Final = 32


def private_folder(path: Path) -> Path | None:
    """Make a folder that only this user can enter; None if it cannot be made or is another's."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.lstat()  # a link may lead to a folder that another user can write
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            return None
        if status.st_mode & 0o077:
            path.chmod(0o700)
    except OSError:
        return None
    return path


def temporary_path() -> Path:
    """This user's folder in the temporary folder; anyone may have put something else there."""
    return Path(tempfile.gettempdir()) / f"grpo-tui-{os.getuid()}"


def temporary_folder() -> Path | None:
    """This user's private folder in the temporary folder, if there can be one."""
    try:
        return private_folder(temporary_path())
    except OSError:
        return None


def write(path: Path, content: bytes) -> None:
    """Write a file with its hash after it: complete after a crash or a full disk, or not there.

    The loader of libraries ignores what follows a library.
    """
    descriptor, draft = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content + sha256(content).digest())
            file.flush()
            os.fsync(descriptor)
        Path(draft).replace(path)
    except OSError:
        Path(draft).unlink(missing_ok=True)
        raise


def is_intact(path: Path) -> bool:
    """Whether a file is as this user's `write` left it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid():
                return False
            content = file.read()
    except OSError:
        return False
    return sha256(content[:-HASH_BYTES]).digest() == content[-HASH_BYTES:]
