"""The bundled demo recording: a small packed store, unpacked for viewing.

`python -m tools.make_demo` records it again: a real starter run on this machine.
"""

import tarfile
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from grpo_tui.experiments.db.paths import FILE_NAME

RUN = "@last"
ARCHIVE = "demo.tar.xz"
RECORDING = files("grpo_tui.app").joinpath("assets", ARCHIVE)


def unpack(folder: Path, source: "Traversable | Path" = RECORDING) -> Path:
    """Unpack a packed store into the folder and return its path."""
    with source.open("rb") as file, tarfile.open(fileobj=file, mode="r:xz") as archive:
        # Python 3.11.0 to 3.11.3 have no filter and read none
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(folder)
    return folder / FILE_NAME
