"""Paths of the store: one SQLite file and next to it a folder for each run."""

import os
from pathlib import Path

from grpo_engine.errors import OutsideError
from grpo_engine.paths import inside
from grpo_tui.experiments.errors import OutsideStoreError

FILE_NAME = "grpo-tui.db"
RUNS, STARTS, TRACKERS, SPILLED = "runs", "starts", "trackers", "spilled"


def store_path(path: str | Path | None = None) -> Path:
    """Return the given file, else `$GRPO_TUI_DB`, else a file in the platform's data folder."""
    if named := path or os.environ.get("GRPO_TUI_DB"):
        return Path(named).expanduser()
    from platformdirs import user_data_path

    return user_data_path("grpo-tui", appauthor=False) / FILE_NAME


def inside_store(folder: Path, *names: str) -> Path:
    """Join names from a store to a folder; raise a StoreError if the path leaves the folder."""
    try:
        return inside(folder, *names)
    except OutsideError as error:
        raise OutsideStoreError(str(error)) from error


def runs_folder(store: Path) -> Path:
    return store.parent / RUNS


def starts_folder(store: Path) -> Path:
    """The folder of the checkpoints that other runs began from."""
    return inside_store(store.parent, STARTS)


def run_folder(store: Path, run: str) -> Path:
    """The folder of a run: checkpoints, log, faulthandler output, `tokens.db`."""
    return inside_store(store.parent, RUNS, run)


def log_file(folder: Path) -> Path:
    """The run's plain-text log."""
    return inside_store(folder, "log.txt")


def fault_file(folder: Path) -> Path:
    """The stacks that `faulthandler` writes when a signal kills the process."""
    return inside_store(folder, "faults.txt")


def running_file(folder: Path) -> Path:
    """Names the user's function that is running in the training process, if any."""
    return inside_store(folder, "running.txt")


def tokens_file(folder: Path) -> Path:
    return inside_store(folder, "tokens.db")


def spill_folder(store: Path) -> Path:
    """The folder for events that could not be written to the store in time."""
    return inside_store(store.parent, RUNS, SPILLED)


def spill_file(store: Path, run: str) -> Path:
    return inside_store(store.parent, RUNS, SPILLED, f"{run}.jsonl")
