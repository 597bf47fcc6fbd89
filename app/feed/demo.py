"""The bundled demo recording: a small packed store, unpacked for viewing.

`python -m tools.make_demo` records it again: a real starter run on this machine.
"""

import tarfile
from importlib.resources import as_file, files
from pathlib import Path

from grpo_tui.experiments.db.paths import FILE_NAME

RUN = "@last"
ARCHIVE = "demo.tar.xz"


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
        # Python 3.11.0 to 3.11.3 have no filter and read none
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(folder)
    return folder / FILE_NAME
