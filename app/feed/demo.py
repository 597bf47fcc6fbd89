"""The bundled demo recording: a small packed store, unpacked for viewing.

`python -m tools.make_demo` records it again: a real starter run on this machine.
"""

import shutil
import tarfile
from importlib.resources import as_file, files
from pathlib import Path, PurePosixPath

from grpo_engine.paths import inside
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
