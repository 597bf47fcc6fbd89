"""Settings of earlier versions: they are read from files, stores and command lines, and ignored."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Removed:
    """Why a setting has no effect, and the values that said no more than leaving it out."""

    why: str
    unset: tuple[Any, ...]


REMOVED: Final[Mapping[str, Removed]] = {
    "run.workers": Removed(
        "one process computes, with all the cores that it may use", unset=(0, "auto")
    ),
}


def without_removed(tree: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The tree without settings that have no effect, and by path a note on each that was set."""
    kept, notes = dict(tree), dict[str, str]()
    for path, removed in REMOVED.items():
        section, _, name = path.partition(".")
        inner = kept.get(section)
        if not isinstance(inner, Mapping) or name not in inner:
            continue
        kept[section] = {key: value for key, value in inner.items() if key != name}
        if not kept[section]:
            del kept[section]
        if inner[name] not in removed.unset:
            notes[path] = f"{path} {inner[name]} has no effect: {removed.why}; leave it out"
    return kept, notes
