"""Checkpoints that other runs began from, kept when their own run drops or loses them."""

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from grpo_engine.paths import remove
from grpo_tui.experiments.db.paths import STARTS, inside_store, runs_folder, starts_folder

PARTIAL = ".partial-"
# the settings that can name a checkpoint of another run
SETTINGS = (("model", "adapter"), ("model", "path"), ("optimizer", "start"))
PATHS = tuple(f"{section}.{name}" for section, name in SETTINGS)


def keep(store: Path, tree: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Point the settings of a new run to kept copies of the checkpoints that they name.

    Returns the settings that change and the run that the weights come from, if they are a run's.
    """
    changed: dict[str, dict[str, str]] = {}
    origin = ""
    for section, name in SETTINGS:
        place = Path(tree.get(section, {}).get(name) or ".").expanduser().absolute()
        run, step = place.parent.parent.name, place.name
        if place.parents[2:3] != (runs_folder(store).absolute(),) or not place.is_dir():
            continue
        kept = inside_store(starts_folder(store).absolute(), f"{run}-{step}")
        _link(place, kept)
        changed.setdefault(section, {})[name] = str(kept)
        origin = run if section == "model" else origin
    return changed, origin


def _link(place: Path, kept: Path) -> None:
    """Link the files of a folder; where that cannot be done, copy them."""
    partial = kept.with_name(f"{PARTIAL}{os.getpid()}-{kept.name}")
    if kept.is_dir():
        return
    remove(partial.parent, partial.name, ignore_errors=True)
    partial.parent.mkdir(parents=True, exist_ok=True)
    try:
        shutil.copytree(place, partial, copy_function=os.link)
    except (OSError, shutil.Error):
        shutil.copytree(place, partial, dirs_exist_ok=True)
    partial.replace(kept)


def start_step(settings: Mapping[str, Any]) -> int | None:
    """The step of the checkpoint that a run with these settings by path began from."""
    for section, name in SETTINGS[:2]:
        place = Path(str(settings.get(f"{section}.{name}") or "."))
        step = place.name.rpartition("-step-")[2]
        if place.parent.name == STARTS and step.isdigit():
            return int(step)
    return None


def drop_unused(store: Path, values: Iterable[Any]) -> None:
    """Remove the kept checkpoints that none of the values of `PATHS` names."""
    named = {Path(str(value)).name for value in values}
    root = starts_folder(store)
    for place in root.iterdir() if root.is_dir() else ():
        if place.name not in named and not place.name.startswith(PARTIAL):
            remove(root, place.name, ignore_errors=True)
