"""The verbs of the command line, with module and summary, without importing any."""

import tomllib
from importlib.resources import files
from typing import Final, NamedTuple


class Verb(NamedTuple):
    """One row of the table; `target` is `module:attribute`, a Typer app or a function."""

    name: str
    target: str
    help: str
    section: str


# Nothing of these verbs works without MLX's back end.
NEEDS_ENGINE: Final = frozenset({"probe", "plan", "train", "resume", "sweep", "eval"})
TRAINING: Final = frozenset({"train", "resume", "sweep"})
_TEXT = files(__package__).joinpath("verbs.toml").read_text(encoding="utf-8")
VERBS: Final = tuple(
    Verb(name, f"grpo_tui.app.cli.verbs.{target}", summary, section)
    for section, rows in tomllib.loads(_TEXT).items()
    for name, (target, summary) in rows.items()
)
