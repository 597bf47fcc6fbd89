"""Checkpoints that other runs began from; copies survive when their run drops them."""

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from grpo_engine.paths import remove
from grpo_tui.experiments.db.configs import flat
from grpo_tui.experiments.db.paths import STARTS, inside_store, runs_folder, starts_folder

PARTIAL = ".partial-"
# Settings that can name a checkpoint of another run; the first two name weights.
PATHS = ("model.adapter", "model.path", "optimizer.start", "teacher.path")


def copy_starts(store: Path, tree: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Copy the checkpoints that the settings of a new run name.

    Returns the settings that change, and the id of the run that trained the weights, if any.
    """
    changed: dict[str, dict[str, str]] = {}
    origin, settings = "", flat(tree)
    for path in PATHS:
        folder = Path(settings.get(path) or ".").expanduser().absolute()
        run, step = folder.parent.parent.name, folder.name
        if folder.parents[2:3] != (runs_folder(store).absolute(),) or not folder.is_dir():
            continue
        copy = inside_store(starts_folder(store).absolute(), f"{run}-{step}")
        _link(folder, copy)
        section, _, name = path.partition(".")
        changed.setdefault(section, {})[name] = str(copy)
        origin = run if section == "model" else origin
    return changed, origin


def _link(folder: Path, copy: Path) -> None:
    """Link the files of a folder, or copy them where links are impossible."""
    partial = copy.with_name(f"{PARTIAL}{os.getpid()}-{copy.name}")
    if copy.is_dir():
        return
    remove(partial.parent, partial.name, ignore_errors=True)
    partial.parent.mkdir(parents=True, exist_ok=True)
    try:
        shutil.copytree(folder, partial, copy_function=os.link)
    except (OSError, shutil.Error):
        shutil.copytree(folder, partial, dirs_exist_ok=True)
    partial.replace(copy)


def start_step(settings: Mapping[str, Any]) -> int | None:
    """The step of the checkpoint that a run with these settings began from."""
    for path in PATHS[:2]:
        folder = Path(str(settings.get(path) or "."))
        step = folder.name.rpartition("-step-")[2]
        if folder.parent.name == STARTS and step.isdigit():
            return int(step)
    return None


def drop_unused(store: Path, values: Iterable[Any]) -> None:
    """Remove the copies that none of these values of settings names."""
    named = {Path(str(value)).name for value in values}
    root = starts_folder(store)
    for folder in root.iterdir() if root.is_dir() else ():
        if folder.name not in named and not folder.name.startswith(PARTIAL):
            remove(root, folder.name, ignore_errors=True)
