"""Paths of the store: one SQLite file and next to it a folder for each run."""

import os
from pathlib import Path

FILE_NAME = "grpo-tui.db"


def store_path(given: str | Path | None = None) -> Path:
    """Return the given file, else `$GRPO_TUI_DB`, else a file in the platform's data folder."""
    if given:
        return Path(given).expanduser()
    if named := os.environ.get("GRPO_TUI_DB"):
        return Path(named).expanduser()
    from platformdirs import user_data_path

    return user_data_path("grpo-tui", appauthor=False) / FILE_NAME


def runs_folder(store: Path) -> Path:
    return store.parent / "runs"


def trackers_folder(store: Path) -> Path:
    """The folder next to the store in which live trackers keep their files."""
    return store.parent / "trackers"


def starts_folder(store: Path) -> Path:
    """The folder next to the store with the checkpoints that other runs began from."""
    return store.parent / "starts"


def run_folder(store: Path, run: str) -> Path:
    """The folder of a run: checkpoints, log, faulthandler output, `tokens.db`."""
    return runs_folder(store) / run


def log_file(folder: Path) -> Path:
    """The run's plain-text log."""
    return folder / "log.txt"


def fault_file(folder: Path) -> Path:
    """Where `faulthandler` writes the stacks when a signal kills the process."""
    return folder / "faults.txt"


def tokens_file(folder: Path) -> Path:
    return folder / "tokens.db"


def spill_folder(store: Path) -> Path:
    """The folder for events that could not be written to the store in time."""
    return runs_folder(store) / "spilled"


def spill_file(store: Path, run: str) -> Path:
    return spill_folder(store) / f"{run}.jsonl"
