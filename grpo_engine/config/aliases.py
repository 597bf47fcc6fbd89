"""The names that settings have in other programs."""

import tomllib
from collections.abc import Iterable
from importlib.resources import files
from typing import Final

from grpo_engine.config.trl_names import PLAIN
from grpo_engine.errors import nearest

_TEXT = files(__package__).joinpath("other_names.toml").read_text(encoding="utf-8")
MEANT: Final = {
    **PLAIN,
    **{name: path for path, names in tomllib.loads(_TEXT).items() for name in names},
}


def meant(path: str, settings: Iterable[str]) -> str:
    """The setting that a wrong path means, or those of a similar name, as the end of a sentence."""
    leaf = path.rpartition(".")[2]
    if leaf in MEANT:
        return f"; did you mean {MEANT[leaf]}?"
    return nearest(path, settings) or "; `grpo-tui config init --full` lists them"
