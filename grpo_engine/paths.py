"""Paths by names that come from a store, a checkpoint, an export or a model.

Whoever made these may want to harm: `../..`, an absolute path, or a link that leads elsewhere.
Every write to such a path and every deletion goes through here.
"""

import os
import shutil
from pathlib import Path

from grpo_engine.errors import OutsideError

LONGEST = 80  # characters of a name in a message


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
        shutil.rmtree(path, ignore_errors=ignore_errors)
    else:
        path.unlink(missing_ok=True)


def _entry(folder: Path, names: tuple[str, ...]) -> Path:
    for depth, name in enumerate(names):
        if not isinstance(name, str) or name in ("", ".", "..") or set(name) & {"/", "\0"}:
            shown = repr(name)
            shown = shown if len(shown) <= LONGEST else f"{shown[:LONGEST]}…"
            parent = folder.joinpath(*names[:depth])
            raise OutsideError(f"{shown} cannot be the name of a file or folder in {parent}")
    return folder.joinpath(*names)
