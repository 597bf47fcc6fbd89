"""Paths by names that come from a store, a checkpoint, an export or a model.

Whoever made these may want to harm: `../..`, an absolute path, a link that leads elsewhere, or a
pipe in place of a file, which may never end. Every write to such a path and every deletion goes
through here.
"""

import os
import shutil
import stat
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final

from grpo_engine.errors import OutsideError, quoted

IRREGULAR: Final = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def inside(folder: Path, *names: str) -> Path:
    """Return folder/name/name, or raise OutsideError if that is not in `folder`.

    Each name is one entry. Links are followed and must end in `folder` as well.
    """
    path = _entry(folder, names)
    root, target = Path(os.path.realpath(folder)), Path(os.path.realpath(path))
    if target == root or not target.is_relative_to(root):
        raise OutsideError(
            f"{path} is a link that leads out of {folder}, to {target}; remove the link, or move "
            "there what it leads to"
        )
    return path


def remove(folder: Path, *names: str, ignore_errors: bool = False) -> None:
    """Remove an entry of `folder` with everything in it; of a link only the link itself."""
    path = _entry(folder, names)
    if names[:-1]:
        inside(folder, *names[:-1])
    if path.is_dir() and not path.is_symlink():
        with suppress(RecursionError):
            shutil.rmtree(path, ignore_errors=ignore_errors)
        if path.exists():  # folders in folders, thousands deep
            subprocess.run(["rm", "-rf", "--", path], check=not ignore_errors)
    else:
        path.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _entry(folder: Path, names: tuple[str, ...]) -> Path:
    for depth, name in enumerate(names):
        if not isinstance(name, str) or name in ("", ".", "..") or set(name) & {"/", "\0"}:
            parent = folder.joinpath(*names[:depth])
            raise OutsideError(f"{quoted(name)} cannot be the name of a file or folder in {parent}")
    return folder.joinpath(*names)


def begins_with(path: Path, mark: bytes) -> bool:
    """Whether a path is that of a file with these first bytes."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(mark)) == mark


def irregular_file(path: Path) -> str:
    """Which file, of a folder or alone, is no regular file, in words; empty if all are."""
    # transformers reads templates in a folder of the folder
    inner = sorted([*path.glob("*"), *path.glob("*/*")]) if path.is_dir() else []
    for file in (path, *inner):
        try:
            irregular = IRREGULAR.get(stat.S_IFMT(file.stat().st_mode))
        except OSError:  # whoever reads it says what is wrong
            continue
        if irregular:
            return f"{file} is {irregular}, not a file"
    return ""
