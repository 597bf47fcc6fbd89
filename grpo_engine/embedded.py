"""The models that come with the program."""

from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).parent / "models" / "starter"
EMBEDDED: Final = {"starter": _FOLDER / "model", "starter-guess": _FOLDER / "guess"}
