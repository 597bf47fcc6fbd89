"""Refuses pipes, devices and sockets in place of a model's files: reading one may never end."""

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

KINDS: Final = {
    stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}  # fmt: skip


def irregular_file(path: Path) -> str:
    """Say which file, of a folder or alone, is no regular file; "" if all are."""
    for file in _files(path):
        try:
            kind = KINDS.get(stat.S_IFMT(file.stat().st_mode))
        except OSError:  # whoever reads it says what is wrong
            continue
        if kind:
            return f"{file} is {kind}, not a file"
    return ""


def _files(path: Path) -> Iterator[Path]:
    yield path
    for pattern in ("*", "*/*"):  # transformers reads templates in a folder of the folder
        yield from sorted(path.glob(pattern)) if path.is_dir() else ()
