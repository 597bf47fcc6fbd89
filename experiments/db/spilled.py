"""Files with events that the store could not take: where they are, and what readers say of them."""

import json
import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from grpo_tui.experiments.db.paths import inside_store, spill_file, spill_folder
from grpo_tui.experiments.errors import OutsideStoreError

PREFIX = "grpo-tui-spill-"  # in the temporary folder, where earlier versions wrote on a full disk
ENDS = {"RunFinished", "RunFailed"}


@dataclass(frozen=True, slots=True)
class Spilled:
    """The events of a run that wait in its files, and the end among them, if there is one."""

    events: int
    step: int
    status: str
    files: tuple[Path, ...]

    def __str__(self) -> str:
        return f"{self.events} events wait in {' and '.join(map(str, self.files))}"


def spill_files(store: Path, run: str) -> tuple[Path, ...]:
    """Return a run's existing files, oldest first."""
    try:
        temporary = inside_store(Path(tempfile.gettempdir()), f"{PREFIX}{run}.jsonl")
        return tuple(path for path in (spill_file(store, run), temporary) if _is_ours(path))
    except OutsideStoreError:  # it cannot be recorded to either
        return ()


def runs_waiting(store: Path) -> list[str]:
    files = [*Path(tempfile.gettempdir()).glob(f"{PREFIX}*.jsonl")]
    with suppress(OutsideStoreError):  # nothing of ours is there
        files += spill_folder(store).glob("*.jsonl")
    return sorted({path.stem.removeprefix(PREFIX) for path in files if _is_ours(path)})


def spilled(store: Path, run: str) -> Spilled:
    """Count what waits for a run; lines that are no events are not counted."""
    events, step, status = 0, 0, ""
    files = spill_files(store, run)
    for file in files:
        with file.open("rb") as lines:
            for line in lines:
                try:
                    event = dict(json.loads(line)["event"])
                    kind, step = event["event"], max(step, int(event["step"]))
                except (ValueError, KeyError, TypeError):
                    continue
                events += 1
                if kind in ENDS:
                    status = str(event.get("reason") or "failed")
    return Spilled(events, step, status, files)


def free_space(path: Path) -> str:
    """Say how much is free where a file is, or would be."""
    for folder in path.parents:
        if folder.exists():
            return f"{shutil.disk_usage(folder).free / 1e6:.1f} MB are free in {folder}"
    return "its folder is gone"


def _is_ours(path: Path) -> bool:
    """Return whether this user owns the file: anyone may write to the temporary folder."""
    try:
        return path.stat().st_uid == os.getuid()
    except OSError:
        return False
