"""Models that are on this machine: those that come with the program, and folders."""

from pathlib import Path
from typing import Final

from grpo_engine.errors import ModelError
from grpo_engine.paths import irregular_file

_FOLDER: Final = Path(__file__).parents[1] / "models" / "starter"
EMBEDDED: Final = {"starter": _FOLDER / "model", "starter-guess": _FOLDER / "guess"}


def local_folder(path: str) -> Path | None:
    """The folder of an embedded model or of a path; None if there is no such folder."""
    folder = EMBEDDED.get(path) or Path(path).expanduser()
    if not folder.is_dir():
        return None
    if problem := irregular_file(folder):
        raise ModelError(f"model.path {path}: {problem}; get the model again", "model.path")
    return folder
