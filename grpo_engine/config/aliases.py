"""Names of settings that are not, or no longer, theirs: of earlier versions and other programs."""

import tomllib
from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import Any, Final

from grpo_engine.config.trl_names import PLAIN
from grpo_engine.errors import nearest

_TEXT = files(__package__).joinpath("other_names.toml").read_text(encoding="utf-8")
MEANT: Final = {
    **PLAIN,
    **{name: path for path, names in tomllib.loads(_TEXT).items() for name in names},
}
# Settings of earlier versions, which are read and ignored: why, and which values need no note.
REMOVED: Final[Mapping[str, tuple[str, tuple[Any, ...]]]] = {
    "run.workers": ("one process computes, with all the cores that it may use", (0, "auto")),
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


def without_removed(tree: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The tree without settings that have no effect, and by path a note on each that was set."""
    current, notes = dict(tree), dict[str, str]()
    for path, (reason, unset) in REMOVED.items():
        section, _, name = path.partition(".")
        inner = current.get(section)
        if isinstance(inner, Mapping) and name in inner:
            current[section] = {key: value for key, value in inner.items() if key != name}
            if not current[section]:
                del current[section]
            if inner[name] not in unset:
                notes[path] = f"{path} {inner[name]} has no effect: {reason}; leave it out"
    return current, notes
