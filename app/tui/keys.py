"""Keys: the bindings of each part of the workbench.

A key means the same on every screen: `tests/app/tui/test_key_grammar.py` has the meaning of each.
"""

import tomllib
from importlib.resources import files
from typing import Any

from textual.binding import Binding

LAST = 1_000_000  # lines that home and end move by: further than any panel is long
KEYS = tomllib.loads(files(__package__).joinpath("keys.toml").read_text("utf-8"))


def bindings(part: str) -> list[Any]:
    """The bindings of a part; what has no key is in the palette until a keymap gives it one."""
    return [
        Binding(id=id, **{"key": f"unbound+{id}", **fields}) for id, fields in KEYS[part].items()
    ]


def is_bound(key: str) -> bool:
    """Whether a key can be pressed."""
    return not key.startswith("unbound+")
