"""Settings of earlier versions, and how files, stores and checkpoints with them are read."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple


class Removed(NamedTuple):
    """A removed setting: the values that every run has now, its default first.

    Another value has no effect, for `reason`, or becomes the setting `becomes`, with `value` there
    if it differs.
    """

    usual: Sequence[Any]
    reason: str = ""
    becomes: str = ""
    value: Any = None


_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
# The entries that were settings of a section, with their defaults.
MOVED: Final[Mapping[str, Mapping[str, Sequence[Any]]]] = _TABLES["moved"]
REMOVED: Final[Mapping[str, Removed]] = {
    **{path: Removed(**row) for path, row in _TABLES["removed"].items()},
    **{
        f"{path.partition('.')[0]}.{name}": Removed(usual, becomes=f"{path}.{name}")
        for path, entries in MOVED.items()
        for name, usual in entries.items()
    },
    **{
        f"alerts.{name}": Removed([usual], f"it is {usual:g} in every run")
        for name, usual in _TABLES["thresholds"].items()
    },
}


def without_removed(tree: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The tree in today's settings, and by path a note on each that was set and has no effect."""
    current, notes = dict(tree), dict[str, str]()
    for section in dict.fromkeys(path.partition(".")[0] for path in REMOVED):
        if isinstance(inner := current.get(section), Mapping):
            removed = {key: value for key, value in inner.items() if f"{section}.{key}" in REMOVED}
            current[section] = {key: value for key, value in inner.items() if key not in removed}
            if removed and not current[section]:
                del current[section]
            for key, value in removed.items():
                _replace(current, f"{section}.{key}", value, notes)
    return current, notes


def _replace(current: dict[str, Any], path: str, value: Any, notes: dict[str, str]) -> None:
    """Add what a removed setting becomes, or a note."""
    removed = REMOVED[path]
    if value in removed.usual or value is None:
        return
    if not removed.becomes:
        notes[path] = f"{path} {value} has no effect: {removed.reason}; leave it out"
        return
    section, name, *entry = removed.becomes.split(".")
    inner = current.get(section) or {}
    item = value if removed.value is None else removed.value
    current[section] = {**inner, name: {**inner.get(name, {}), entry[0]: item} if entry else item}
