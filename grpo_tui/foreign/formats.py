"""The formats that are known, and which one a folder or file has."""

from pathlib import Path
from typing import Final

from grpo_tui.experiments.errors import ImportRefusedError
from grpo_tui.foreign.files import Folder
from grpo_tui.foreign.reader import Format, Reader
from grpo_tui.foreign.trl import TRL
from grpo_tui.foreign.verl import VERL

FORMATS: Final[tuple[Format, ...]] = (TRL, VERL)

SQLITE: Final = b"SQLite format 3\0"


def is_foreign(path: Path) -> bool:
    """Whether a path is not that of a store, nor of nothing."""
    if not path.is_file():
        return path.is_dir()
    with path.open("rb") as file:
        is_database = file.read(len(SQLITE)) == SQLITE
    return not is_database or recognised(path) is not None


def recognised(path: Path) -> Reader | None:
    """Open the run in a folder or file; None if its content is of no known format."""
    if not path.exists():
        raise ImportRefusedError(f"there is no {path}; give the folder or file of a run")
    folder = Folder(path)
    return next((reader for known in FORMATS if (reader := known.open(folder))), None)


def unknown(path: Path) -> ImportRefusedError:
    """The error for what no format fits."""
    known = "; ".join(f"{item.name} ({item.files})" for item in FORMATS)
    return ImportRefusedError(
        f"{path} is neither a store of grpo-tui nor a run of another trainer; known are {known}"
    )
