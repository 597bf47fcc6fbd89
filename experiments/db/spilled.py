"""Files with events that the store could not take: where they are, and what readers say of them."""

import json
from dataclasses import dataclass
from pathlib import Path

from grpo_tui.experiments.db.paths import spill_file, spill_folder
from grpo_tui.experiments.errors import OutsideStoreError

ENDS = {"RunFinished", "RunFailed"}


@dataclass(frozen=True, slots=True)
class Spilled:
    """The events of a run that wait in its file, and the end among them, if there is one."""

    events: int
    step: int
    status: str
    file: Path | None  # None without one

    def __str__(self) -> str:
        return f"{self.events} events wait in {self.file}"


def runs_waiting(store: Path) -> list[str]:
    try:
        return sorted(path.stem for path in spill_folder(store).glob("*.jsonl") if path.is_file())
    except OutsideStoreError:  # nothing of ours is there
        return []


def spilled(store: Path, run: str) -> Spilled:
    """Count what waits for a run; lines that are no events are not counted."""
    if run not in runs_waiting(store):
        return Spilled(0, 0, "", None)
    events, step, status = 0, 0, ""
    file = spill_file(store, run)
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
    return Spilled(events, step, status, file)
