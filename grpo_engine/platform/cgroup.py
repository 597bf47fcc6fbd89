"""Finds this process's control groups, version 1 and 2."""

from collections.abc import Iterator
from pathlib import Path


def limits(controller: str, root: Path = Path("/")) -> Iterator[Path]:
    """Folders whose limits apply to this process, from its own group up to the mount.

    A container sees its own group as the mount, so missing paths are skipped.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    mount = root / "sys/fs/cgroup"
    for line in lines:
        _, names, path = line.split(":", 2)
        if not names:
            bases = [mount, mount / "unified"]
        elif controller in names.split(","):
            bases = [mount / names, mount / controller]
        else:
            continue
        for base in bases:
            group = base / path.lstrip("/")
            for folder in (group, *group.parents):
                if folder.is_dir():
                    yield folder
                if folder == base:
                    break
