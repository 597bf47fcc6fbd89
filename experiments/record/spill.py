"""The spill: events as JSON lines next to the run while the store cannot take them."""

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from grpo_engine import events as ev
from grpo_tui.experiments.db.paths import spill_file, spill_folder
from grpo_tui.experiments.db.spilled import places, second_place
from grpo_tui.experiments.record.rows import Item

CHUNK = 200


class Spill:
    """The spill file of one run, in its folder, or in the temporary folder if that disk is full."""

    def __init__(self, store: Path, run: str) -> None:
        self.store, self.run = store, run
        self.path, self.second = spill_file(store, run), second_place(run)
        self.kept: list[bytes] = []  # lines that the store cannot take

    @property
    def places(self) -> tuple[Path, ...]:
        """The existing files, oldest first."""
        return places(self.store, self.run)

    def append(self, items: Sequence[Item]) -> Path:
        """Append the events durably and return the file; OSError if no place accepts them."""
        text = "".join(_line(item) for item in items).encode()
        # once the second place holds events, later ones follow them there
        places = (self.second,) if self.second.exists() else (self.path, self.second)
        failure = OSError("no place to spill to")
        for place in places:
            try:
                _append(place, text)
            except OSError as error:
                failure = error
            else:
                return place
        raise failure

    def read(self) -> Iterator[list[Item]]:
        """Yield the events in batches that end with a step; other lines are added to `kept`.

        An incomplete last line is ignored: the process was killed while writing it.
        """
        self.kept = []
        part: list[Item] = []
        for place in self.places:
            with place.open("rb") as lines:
                for line in lines:
                    item = _item(line)
                    if item is None:
                        if line.endswith(b"\n"):
                            self.kept.append(line)
                        continue
                    part.append(item)
                    if isinstance(item.event, ev.StepFinished) or len(part) >= CHUNK:
                        yield part
                        part = []
        if part:
            yield part

    def keep(self, items: Sequence[Item]) -> None:
        """Keep events in the file that the store rejects."""
        self.kept += [_line(item).encode() for item in items]

    def clear(self) -> None:
        """Remove what was read, once it is in the store; lines to keep stay."""
        places = self.places
        if self.kept:
            rest = places[0].with_suffix(".partial")
            rest.unlink(missing_ok=True)
            _append(rest, b"".join(self.kept))
            rest.replace(places[0])
        for place in places[1 if self.kept else 0 :]:
            place.unlink()

    @property
    def last_kept(self) -> int:
        """Return the highest sequence number of the lines to keep; 0 if there are none."""
        numbers = (_field(line, "seq") for line in self.kept)
        return max((seq for seq in numbers if _is_number(seq)), default=0)

    def complaint(self) -> str:
        """Say which lines are kept, where, and what to do about them; empty if none are."""
        if not self.kept:
            return ""
        events = (_field(line, "event") for line in self.kept)
        kinds = {str(event.get("event")) if isinstance(event, dict) else "?" for event in events}
        return (
            f"{len(self.kept)} spilled events cannot be imported by this version "
            f"({', '.join(sorted(kinds))}) and stay in {self.places[0]}: "
            "upgrade grpo-tui, or delete the file to give them up"
        )


@contextmanager
def taking_in(store: Path) -> Iterator[None]:
    """Hold the lock under which spilled events are moved into the store, so that one does it."""
    folder = spill_folder(store)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _line(item: Item) -> str:
    data = {"seq": item.seq, "at": item.at, "event": ev.to_json(item.event)}
    return json.dumps(data, separators=(",", ":"), allow_nan=False) + "\n"


def _append(place: Path, text: bytes) -> None:
    """Append the data completely and fsync it, or leave the file unchanged."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("ab") as out:
        size = out.tell()
        try:
            # terminate a line that a killed process left incomplete
            if size and not _ends_a_line(place):
                out.write(b"\n")
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        except OSError:
            os.truncate(place, size)
            raise


def _ends_a_line(place: Path) -> bool:
    with place.open("rb") as lines:
        lines.seek(-1, os.SEEK_END)
        return lines.read(1) == b"\n"


def _item(line: bytes) -> Item | None:
    try:
        data = json.loads(line)
        if not _is_number(data["seq"]):
            return None
        return Item(data["seq"], float(data["at"]), ev.from_json(data["event"]))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None


def _is_number(seq: Any) -> bool:
    """Return whether SQLite accepts this as a sequence number."""
    return isinstance(seq, int) and 0 <= seq < 2**62


def _field(line: bytes, name: str) -> Any:
    """Return a field of a line that is not an event of this version; None if it is missing."""
    try:
        return dict(json.loads(line)).get(name)
    except (ValueError, TypeError):
        return None
