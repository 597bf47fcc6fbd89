"""The built-in reward functions by name, with their purpose; imported when they are called."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple


class BuiltIn(NamedTuple):
    """One built-in function; `target` is `module:function`."""

    target: str
    scores: str
    summary: str


_TEXT = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
BUILT_IN: Final[Mapping[str, BuiltIn]] = {
    name: BuiltIn(**row) for name, row in tomllib.loads(_TEXT).items()
}
