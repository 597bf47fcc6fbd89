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
    section, _, leaf = path.rpartition(".")
    if leaf not in MEANT:
        return nearest(path, settings)
    meaning = MEANT[leaf]
    alike = [
        name for name in settings
        if name.endswith(f".{leaf}") and name not in (meaning, path)
    ]  # fmt: skip
    in_section = meaning.startswith(f"{section}.") or not section
    names = [meaning, *alike] if in_section else [*alike, meaning]
    return f"; did you mean {' or '.join(names[:2])}?"
