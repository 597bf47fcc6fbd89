"""Summaries of the metrics of a run, updated with every value."""

import math
import sqlite3
from collections.abc import Iterable

from experiments.db.statements import insert_into, select
from experiments.db.stored import MetricSummary

UPSERT = insert_into(MetricSummary, "INSERT OR REPLACE")
EMPTY = MetricSummary(run_id=0, key_id=0, count=0, nonfinite=0)


class Summary:
    """First and last value, extremes with their steps, mean and counts of one metric."""

    __slots__ = (
        "count", "first", "first_step", "last", "last_step", "max", "max_step", "mean", "min",
        "min_step", "nonfinite",
    )  # fmt: skip

    def __init__(self, row: MetricSummary = EMPTY) -> None:
        self.count, self.nonfinite, self.mean = row.count, row.nonfinite, row.mean
        self.first, self.first_step = row.first, row.first_step
        self.last, self.last_step = row.last, row.last_step
        self.min, self.min_step = row.min, row.min_step
        self.max, self.max_step = row.max, row.max_step

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

    def row(self, run: int, key: int) -> MetricSummary:
        return MetricSummary(
            run_id=run, key_id=key, first=self.first, first_step=self.first_step, last=self.last,
            last_step=self.last_step, min=self.min, min_step=self.min_step, max=self.max,
            max_step=self.max_step, mean=self.mean, count=self.count, nonfinite=self.nonfinite,
        )  # fmt: skip


def load(conn: sqlite3.Connection, run: int) -> dict[int, Summary]:
    rows = conn.execute(
        f"SELECT {select(MetricSummary)} FROM metric_summary WHERE run_id = ?", (run,)
    )
    return {row.key_id: Summary(row) for row in map(MetricSummary._make, rows)}


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
            conn.execute(UPSERT, summary.row(run, key))
        else:
            conn.execute("DELETE FROM metric_summary WHERE run_id = ? AND key_id = ?", (run, key))
