"""A store in which every text acts on a terminal: all columns, found by looking, and their JSON."""

import json
import re
import shutil
import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from sqlmodel import SQLModel

import grpo_tui.experiments.db.tables  # noqa: F401 - declares the tables
from grpo_tui.experiments.db.texts import escape
from grpo_tui.experiments.db.types import EscapedText

# OSC 52 sets the clipboard, OSC 0 the title, 6n asks for an answer; C1, bidirectional, BEL, NUL
PLANTED = (
    "\x1b]52;c;UExBTlRFRA==\x07\x1b]0;PLANTED\x1b\\\x9b6n\x9d0;PLANTED\x9c\u202ePLANTED\u2066"
    "\x1b[6n\x1bPPLANTED\x1b\\\x07\x00"
)
# what the program itself sends: styles, cursor, modes, keyboard protocol, and copies of its own
_OURS = re.compile(
    rb"\x1b\[[0-9;?<>=$]*[mHABCDJKhlpu]"
    rb"|\x1b\]52;c;(?!UExBTlRFRA)[A-Za-z0-9+/=]*\x07"
    rb"|\x1b\]22;[a-z]*\x07"
    rb"|\x1b\]9;[ -\x7e]*(?:\x07\x07|\x1b\\)"
)
_ACTING = re.compile(
    rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\xc2[\x80-\x9f]|\xd8\x9c"
    rb"|\xe2\x80[\x8e\x8f\xaa-\xae]|\xe2\x81[\xa6-\xa9]"
)


def acting(output: bytes) -> list[bytes]:
    """The places in a program's output that a terminal obeys and that are not its own."""
    rest = _OURS.sub(b"", output)
    return [rest[max(0, hit.start() - 60) : hit.end() + 40] for hit in _ACTING.finditer(rest)]


class Place(NamedTuple):
    """A text column, and within JSON the key whose texts are planted."""

    table: str
    column: str
    key: str | None = None


def places(store: Path) -> Iterator[Place]:
    """Every place of a text in the store."""
    with closing(sqlite3.connect(store)) as conn:
        for name, table in SQLModel.metadata.tables.items():
            for column in table.columns:
                if not isinstance(column.type, EscapedText):
                    continue
                rows = conn.execute(f"SELECT {column.name} FROM {name}").fetchall()
                keys = {key for (text,) in rows for key in _keys(_tree(text))}
                yield Place(name, column.name)
                yield from (Place(name, column.name, key) for key in sorted(keys))


def plant(store: Path, chosen: Sequence[Place]) -> None:
    """Append the sequences to the texts of these places."""
    with closing(sqlite3.connect(store)) as conn:
        conn.execute("PRAGMA foreign_keys = OFF")
        for table, column in dict.fromkeys((place.table, place.column) for place in chosen):
            keys = {place.key for place in chosen if (place.table, place.column) == (table, column)}

            def planted(text: Any, keys: set[str | None] = keys) -> Any:
                tree = _tree(text)
                if tree is not None:
                    return json.dumps(_changed(tree, keys))
                return text + escape(PLANTED) if isinstance(text, str) and None in keys else text

            conn.create_function("planted", 1, planted)
            for trigger in _triggers(conn, table):
                conn.execute(f"DROP TRIGGER {trigger}")
            conn.execute(f"UPDATE {table} SET {column} = planted({column})")
        conn.commit()


def _triggers(conn: sqlite3.Connection, table: str) -> list[str]:
    asked = "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = ?"
    return [name for (name,) in conn.execute(asked, (table,))]


def plantable(
    store: Path, folder: Path, accepted: Callable[[Path], bool], checked: Collection[str]
) -> tuple[list[Place], list[Place]]:
    """The places that a store may have planted and still be accepted, and the others.

    Those in columns that are known to be checked are sorted out apart, which takes fewer trials.
    """
    good: list[Place] = []
    bad: list[Place] = []

    def sort_out(some: list[Place]) -> None:
        if _accepts(store, folder, [*good, *some], accepted):
            good.extend(some)
        elif len(some) == 1:
            bad.extend(some)
        else:
            middle = len(some) // 2
            sort_out(some[:middle])
            sort_out(some[middle:])

    every = list(places(store))
    sort_out([place for place in every if place.column not in checked])
    sort_out([place for place in every if place.column in checked])
    return good, bad


def _accepts(
    store: Path, folder: Path, chosen: list[Place], accepted: Callable[[Path], bool]
) -> bool:
    copy = folder / "trial"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(store.parent, copy)
    plant(copy / store.name, chosen)
    return accepted(copy / store.name)


def _tree(text: Any) -> Any:
    """The list or mapping that a column holds, if it does."""
    try:
        tree = json.loads(text)
    except (TypeError, ValueError):
        return None
    return tree if isinstance(tree, dict | list) else None


def _keys(tree: Any, key: str = "") -> Iterator[str]:
    """The keys that hold texts."""
    if isinstance(tree, dict):
        for name, value in tree.items():
            yield from _keys(value, name)
    elif isinstance(tree, list):
        for value in tree:
            yield from _keys(value, key)
    elif isinstance(tree, str):
        yield key


def _changed(tree: Any, keys: set[str | None], key: str = "") -> Any:
    if isinstance(tree, dict):
        return {name: _changed(value, keys, name) for name, value in tree.items()}
    if isinstance(tree, list):
        return [_changed(value, keys, key) for value in tree]
    return tree + PLANTED if isinstance(tree, str) and key in keys else tree
