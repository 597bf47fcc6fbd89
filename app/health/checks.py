"""A check of the machine: its result, how severe that is, and the remedy."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """The severity of a result."""

    FINE = "fine"
    WARNING = "warning"
    STOPS = "stops a run"


@dataclass(frozen=True, slots=True)
class Check:
    """A line of the report: what was checked, the result, and the remedy if it is a problem."""

    name: str
    result: str
    remedy: str = ""
    stops: bool = False  # whether no run can start

    @property
    def level(self) -> Level:
        return Level.STOPS if self.stops else Level.WARNING if self.remedy else Level.FINE
