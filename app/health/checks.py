"""A check of the machine: its result, how severe that is, and the remedy."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["fine", "warning", "stops a run"]


@dataclass(frozen=True, slots=True)
class Check:
    """A line of the report: what was checked, the result, and the remedy if it is a problem."""

    name: str
    result: str
    remedy: str = ""
    stops: bool = False  # whether no run can start

    @property
    def level(self) -> Level:
        return "stops a run" if self.stops else "warning" if self.remedy else "fine"
