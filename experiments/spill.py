"""Where events wait while the store cannot take them: JSON lines beside the run, taken in later."""

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from experiments.paths import spill_file, spill_folder
from experiments.rows import Item
from grpo_engine import events as ev

CHUNK = 200
PREFIX = "grpo-tui-spill-"


class Spill:
    """The spill file of one run; the run's folder first, the temporary folder if that is full."""

    def __init__(self, store: Path, run: str) -> None:
        self.path = spill_file(store, run)
        self.second = Path(tempfile.gettempdir()) / f"{PREFIX}{run}.jsonl"

    @property
    def places(self) -> tuple[Path, ...]:
        """The files there are, the older one first."""
        return tuple(path for path in (self.path, self.second) if _is_ours(path))

    @classmethod
    def waiting(cls, store: Path) -> list[str]:
        """The runs of which something waits."""
        here = spill_folder(store).glob("*.jsonl")
        there = Path(tempfile.gettempdir()).glob(f"{PREFIX}*.jsonl")
        found = [path.stem for path in here if _is_ours(path)]
        return found + [path.stem.removeprefix(PREFIX) for path in there if _is_ours(path)]

    def append(self, items: Sequence[Item]) -> Path:
        """Write the events down for good and return where; OSError if no place takes them."""
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
        """Give the events back in parts that end with a step; a half-written last line is left."""
        part: list[Item] = []
        for place in self.places:
            with place.open("rb") as lines:
                for line in lines:
                    item = _item(line)
                    if item is None:
                        continue
                    part.append(item)
                    if isinstance(item.event, ev.StepFinished) or len(part) >= CHUNK:
                        yield part
                        part = []
        if part:
            yield part

    def clear(self) -> None:
        """Remove the files, once all of it is in the store."""
        for place in self.places:
            place.unlink()


def _is_ours(path: Path) -> bool:
    """Whether the file is there and this user's: anyone may write to the temporary folder."""
    try:
        return path.stat().st_uid == os.getuid()
    except OSError:
        return False


def _line(item: Item) -> str:
    data = {"seq": item.seq, "at": item.at, "event": ev.to_json(item.event)}
    return json.dumps(data, separators=(",", ":"), allow_nan=False) + "\n"


def _append(place: Path, text: bytes) -> None:
    """Append whole, and on disk, or not at all."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("ab") as out:
        size = out.tell()
        try:
            # a line that a killed process left half written ends here
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
        return Item(int(data["seq"]), float(data["at"]), ev.from_json(data["event"]))
    except (ValueError, KeyError, TypeError):
        return None
