"""Summaries of the metrics of a run, updated with every value."""

import math
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, fields

from grpo_tui.experiments.db.statements import REPLACE, Row, insert


@dataclass(slots=True)
class Summary:
    """First and last value, extremes with their steps, mean and counts of one metric."""

    first: float | None = None
    first_step: int | None = None
    last: float | None = None
    last_step: int | None = None
    min: float | None = None
    min_step: int | None = None
    max: float | None = None
    max_step: int | None = None
    mean: float | None = None
    count: int = 0
    nonfinite: int = 0

    def add(self, step: int, value: float) -> None:
        """Add a value; a value that is not finite is only counted."""
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
        return {"run_id": run, "key_id": key, **{name: getattr(self, name) for name in NAMES}}


NAMES = tuple(field.name for field in fields(Summary))


def load(conn: sqlite3.Connection, run: int) -> dict[int, Summary]:
    rows = conn.execute(
        f"SELECT key_id, {', '.join(NAMES)} FROM metric_summary WHERE run_id = ?", (run,)
    )
    return {key: Summary(*numbers) for key, *numbers in rows}


def rebuild(conn: sqlite3.Connection, run: int, keys: Iterable[int]) -> None:
    """Recompute summaries from the values after some of them were hidden."""
    for key in keys:
        summary = Summary()
        values = conn.execute(
            "SELECT step, value FROM metric WHERE run_id = ? AND key_id = ? ORDER BY step",
            (run, key),
        )
        for step, value in values:
            summary.add(step, math.nan if value is None else value)
        if summary.count:
            insert(conn, "metric_summary", [summary.row(run, key)], REPLACE)
        else:
            conn.execute("DELETE FROM metric_summary WHERE run_id = ? AND key_id = ?", (run, key))
