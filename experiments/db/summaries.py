"""The line that sums up one metric of one run, kept up with every value."""

import math
import sqlite3
from collections.abc import Iterable

Row = tuple[float | int | None, ...]

UPSERT = (
    "INSERT OR REPLACE INTO metric_summary (run_id, key_id, first, first_step, last, last_step, "
    "min, min_step, max, max_step, mean, count, nonfinite) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)"
)


class Summary:
    """First, last, extremes with their steps, mean and counts of one metric."""

    __slots__ = (
        "count", "first", "first_step", "last", "last_step", "max", "max_step", "mean", "min",
        "min_step", "nonfinite",
    )  # fmt: skip

    def __init__(self, row: Row = (None,) * 9 + (0, 0)) -> None:
        (
            self.first, self.first_step, self.last, self.last_step, self.min, self.min_step,
            self.max, self.max_step, self.mean, count, nonfinite,
        ) = row  # fmt: skip
        self.count, self.nonfinite = int(count or 0), int(nonfinite or 0)

    def add(self, step: int, value: float) -> None:
        """Take one more value in; a value that is not finite is only counted."""
        self.count += 1
        if not math.isfinite(value):
            self.nonfinite += 1
            return
        if self.first_step is None:
            self.first, self.first_step, self.mean = value, step, 0.0
        self.last, self.last_step = value, step
        if self.min is None or value < self.min:
            self.min, self.min_step = value, step
        if self.max is None or value > self.max:
            self.max, self.max_step = value, step
        finite = self.count - self.nonfinite
        self.mean = (self.mean or 0.0) + (value - (self.mean or 0.0)) / finite

    def row(self, run: int, key: int) -> Row:
        """The parameters of `UPSERT`."""
        return (
            run, key, self.first, self.first_step, self.last, self.last_step, self.min,
            self.min_step, self.max, self.max_step, self.mean, self.count, self.nonfinite,
        )  # fmt: skip


def load(conn: sqlite3.Connection, run: int) -> dict[int, Summary]:
    """The stored lines of a run."""
    rows = conn.execute(
        "SELECT key_id, first, first_step, last, last_step, min, min_step, max, max_step, mean, "
        "count, nonfinite FROM metric_summary WHERE run_id = ?",
        (run,),
    )
    return {row[0]: Summary(row[1:]) for row in rows}


def rebuild(conn: sqlite3.Connection, run: int, keys: Iterable[int]) -> None:
    """Sum up again from the values, after some of them were hidden."""
    for key in keys:
        summary = Summary()
        values = conn.execute(
            "SELECT step, value FROM metric WHERE run_id = ? AND key_id = ? ORDER BY step",
            (run, key),
        )
        for step, value in values:
            summary.add(step, math.nan if value is None else value)
        if summary.count:
            conn.execute(UPSERT, summary.row(run, key))
        else:
            conn.execute("DELETE FROM metric_summary WHERE run_id = ? AND key_id = ?", (run, key))
