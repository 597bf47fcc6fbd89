"""Files with events that the store could not take: where they are, and what readers say of them."""

import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from grpo_tui.experiments.db.paths import spill_file, spill_folder

PREFIX = "grpo-tui-spill-"
ENDS = {"RunFinished", "RunFailed"}


@dataclass(frozen=True, slots=True)
class Spilled:
    """The events of a run that wait in its files, and the end among them, if there is one."""

    events: int
    step: int
    status: str
    places: tuple[Path, ...]

    def __str__(self) -> str:
        return f"{self.events} events wait in {' and '.join(map(str, self.places))}"


def second_place(run: str) -> Path:
    """The file in the temporary folder, for a disk that is full."""
    return Path(tempfile.gettempdir()) / f"{PREFIX}{run}.jsonl"


def places(store: Path, run: str) -> tuple[Path, ...]:
    """Return a run's existing files, oldest first."""
    return tuple(path for path in (spill_file(store, run), second_place(run)) if _is_ours(path))


def runs_waiting(store: Path) -> list[str]:
    here = [path.stem for path in spill_folder(store).glob("*.jsonl") if _is_ours(path)]
    there = Path(tempfile.gettempdir()).glob(f"{PREFIX}*.jsonl")
    here += [path.stem.removeprefix(PREFIX) for path in there if _is_ours(path)]
    return list(dict.fromkeys(here))


def spilled(store: Path, run: str) -> Spilled:
    """Count what waits for a run; lines that are no events are not counted."""
    events, step, status = 0, 0, ""
    found = places(store, run)
    for place in found:
        with place.open("rb") as lines:
            for line in lines:
                try:
                    event = dict(json.loads(line)["event"])
                    kind, step = event["event"], max(step, int(event["step"]))
                except (ValueError, KeyError, TypeError):
                    continue
                events += 1
                if kind in ENDS:
                    status = str(event.get("reason") or "failed")
    return Spilled(events, step, status, found)


def room(path: Path) -> str:
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
