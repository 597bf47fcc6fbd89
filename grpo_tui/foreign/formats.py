"""The formats that are known, and which one a folder or file has."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from grpo_engine.paths import begins_with
from grpo_tui.experiments.errors import ImportRefusedError
from grpo_tui.experiments.export.files import DATABASE
from grpo_tui.foreign.files import Folder
from grpo_tui.foreign.nemo_rl import NEMO
from grpo_tui.foreign.prime_rl import PRIME_RL
from grpo_tui.foreign.reader import Format, Reader
from grpo_tui.foreign.trackio import TRACKIO, project_columns
from grpo_tui.foreign.trl import TRL
from grpo_tui.foreign.verifiers import VERIFIERS
from grpo_tui.foreign.verl import VERL

FORMATS: Final[tuple[Format, ...]] = (TRL, VERL, PRIME_RL, TRACKIO, NEMO, VERIFIERS)


def is_foreign(path: Path) -> bool:
    """Whether a path is not that of a store, nor of nothing."""
    if not path.is_file():
        return path.is_dir()
    return not begins_with(path, DATABASE) or bool(project_columns(path))


def recognised(path: Path) -> Sequence[Reader]:
    """Open the runs in a folder or file; none if its content is of no known format."""
    if not path.exists():
        raise ImportRefusedError(f"there is no {path}; give the folder or file of a run")
    folder = Folder(path)
    return next((readers for known in FORMATS if (readers := known.open(folder))), ())


def unknown(path: Path) -> ImportRefusedError:
    """The error for what no format fits."""
    known = "; ".join(f"{item.name} ({item.files})" for item in FORMATS)
    return ImportRefusedError(
        f"{path} is neither a store of grpo-tui nor a run of another trainer; known are {known}"
    )
