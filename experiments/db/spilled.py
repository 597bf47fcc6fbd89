"""Spill files: events that could not be written to the store wait in them."""

import json
from dataclasses import dataclass
from pathlib import Path

from grpo_tui.experiments.db.paths import spill_file, spill_folder
from grpo_tui.experiments.errors import OutsideStoreError

ENDS = {"RunFinished", "RunFailed"}


@dataclass(frozen=True, slots=True)
class Spilled:
    """The events that wait in a run's spill file; `status` is set if they include its end."""

    events: int
    step: int
    status: str
    file: Path | None

    def __str__(self) -> str:
        return f"{self.events} events wait in {self.file}"


def runs_waiting(store: Path) -> list[str]:
    try:
        return sorted(path.stem for path in spill_folder(store).glob("*.jsonl") if path.is_file())
    except OutsideStoreError:  # another folder, which has no files of this store
        return []


def spilled(store: Path, run: str) -> Spilled:
    """Summarise a run's spill file; lines that are not events are skipped."""
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
