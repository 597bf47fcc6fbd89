"""The settings here by the names that they have in other programs, for messages."""

import tomllib
from collections.abc import Iterable
from importlib.resources import files
from typing import Final

from grpo_engine.config.trl_names import PLAIN
from grpo_engine.errors import nearest

_TEXT = files(__package__).joinpath("other_names.toml").read_text(encoding="utf-8")
_NAMES: Final = tomllib.loads(_TEXT).items()
MEANT: Final = {**PLAIN, **{name: path for path, names in _NAMES for name in names}}


def meant(path: str, known: Iterable[str]) -> str:
    """The setting that a wrong path means, or those of a similar name, as the end of a sentence."""
    section, _, leaf = path.rpartition(".")
    alike = [name for name in known if name.rpartition(".")[2] == leaf]
    by_meaning = MEANT.get(leaf)
    if by_meaning is None:
        return nearest(path, known)
    alike = [name for name in alike if name != by_meaning and name.rpartition(".")[0] != section]
    in_section = by_meaning.startswith(f"{section}.") or not section
    names = [by_meaning, *alike] if in_section else [*alike, by_meaning]
    return f"; did you mean {' or '.join(names[:2])}?"
