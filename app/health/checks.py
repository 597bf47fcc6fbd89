"""A check of the machine: its result, how severe that is, and the remedy."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Level(StrEnum):
    """The severity of a result."""

    FINE = "fine"
    WARNING = "warning"
    STOPS = "stops a run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A line of the report: what was checked, the result, and the remedy."""

    area: str
    name: str
    result: str
    level: Level = Level.FINE
    remedy: str = ""
    numbers: Mapping[str, float | str | None] = field(default_factory=dict)
    """The measured numbers, for programs."""

    def as_json(self) -> dict[str, Any]:
        """Return plain values for `--json`, where the result has been `found` from the start."""
        values = asdict(self)
        return {"found" if name == "result" else name: value for name, value in values.items()}


def gib(size: float) -> str:
    """Format bytes: 1.5 GiB, 20 MiB."""
    for unit, step in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << step:
            return f"{size / (1 << step):.1f} {unit}"
    return f"{size:.0f} B"
