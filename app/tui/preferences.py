"""Remembered preferences such as theme, keys and columns, in one small JSON file."""

import contextlib
import json
import os
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

from grpo_engine.config.safe_json import parse_json, read_text
from grpo_tui.app.tui.looks.colours import DARK, PALETTES

MAX_TEXTS, MAX_CHARS = 100, 200  # of a list, and of a text in it


def preferences_path() -> Path:
    from platformdirs import user_config_path

    return user_config_path("grpo-tui", appauthor=False) / "settings.json"


class Preferences:
    """Preferences of the workbench; without a path they last until the process ends.

    `keymap` maps binding ids to keys, as in {"find": "ctrl+f"}; it is edited by hand.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._values: dict[str, Any] = {}
        self.problem = ""
        if path is not None and os.path.lexists(path):
            try:
                self._values = dict(parse_json(read_text(path)))
            except (TypeError, ValueError) as error:
                self.problem = f"{path} is not used: {error}"

    @property
    def theme(self) -> str:
        """The name of an existing theme."""
        name = self._values.get("theme")
        return name if isinstance(name, str) and name in PALETTES else DARK

    @property
    def keymap(self) -> dict[str, str]:
        """Binding ids and their keys; ids of earlier versions stand for those of today."""
        keys = self._values.get("keymap")
        if not isinstance(keys, dict):
            return {}
        ids = files(__package__).joinpath("earlier_keys.toml").read_text(encoding="utf-8")
        earlier = tomllib.loads(ids)
        renamed = {earlier[name]: key for name, key in keys.items() if name in earlier}
        return {name: key for name, key in {**renamed, **keys}.items() if _is_plain(name, key)}

    def texts(self, name: str) -> list[str] | None:
        """A remembered list of texts; None if there is none."""
        values = self._values.get(name)
        if not isinstance(values, list):
            return None
        return [value for value in values if _is_plain(value)][:MAX_TEXTS]

    def remember(self, **values: Any) -> None:
        """Save values; an unwritable folder is not an error."""
        self._values.update(values)
        if self._path is None:
            return
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            draft = self._path.with_suffix(".tmp")
            draft.write_text(json.dumps(self._values, indent=2) + "\n", encoding="utf-8")
            draft.replace(self._path)


def _is_plain(*values: Any) -> bool:
    """Whether these are short texts that do nothing to a terminal."""
    return all(isinstance(v, str) and v.isprintable() and len(v) <= MAX_CHARS for v in values)
