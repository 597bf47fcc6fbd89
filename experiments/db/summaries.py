"""Summaries of the metrics of a run, updated with every value."""

import math
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import Connection, func, select

from grpo_tui.experiments.db.tables import METRIC, METRIC_SUMMARY


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

    def row(self, run: int, key: int) -> dict[str, Any]:
        return {"run_id": run, "key_id": key, **{name: getattr(self, name) for name in NAMES}}


NAMES = tuple(field.name for field in fields(Summary))


def load(conn: Connection, run: int) -> dict[int, Summary]:
    columns = METRIC_SUMMARY.c
    numbers = (columns[name] for name in NAMES)
    rows = conn.execute(select(columns.key_id, *numbers).where(columns.run_id == run))
    return {key: Summary(*values) for key, *values in rows}


def rebuild(conn: Connection, run: int, from_step: int) -> None:
    """Recompute the summaries of metrics whose values beyond a step were hidden."""
    summary = METRIC_SUMMARY.c
    late = func.max(summary.last_step, summary.min_step, summary.max_step) > from_step
    of_run = METRIC_SUMMARY.delete().where(summary.run_id == run, late | (summary.nonfinite > 0))
    summaries = {key: Summary() for (key,) in conn.execute(of_run.returning(summary.key_id))}
    values = (
        select(METRIC.c.key_id, METRIC.c.step, METRIC.c.value)
        .where(METRIC.c.run_id == run, METRIC.c.key_id.in_(summaries))
        .order_by(METRIC.c.key_id, METRIC.c.step)
    )
    for key, step, value in conn.execute(values):
        summaries[key].add(step, value)
    rows = [summary.row(run, key) for key, summary in summaries.items() if summary.count]
    if rows:
        conn.execute(METRIC_SUMMARY.insert(), rows)
