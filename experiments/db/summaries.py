"""Summaries of the metrics of a run, updated with every value."""

import math
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, func, select

from grpo_tui.experiments.db.tables import METRIC, METRIC_SUMMARY

Summary = dict[str, Any]  # a row of the table


def new_summary(run: int, key: int) -> Summary:
    numbers: Mapping[str, Any] = dict.fromkeys(METRIC_SUMMARY.c.keys())
    return {**numbers, "run_id": run, "key_id": key, "count": 0, "nonfinite": 0}


def add(summary: Summary, step: int, value: float) -> None:
    """Add a value; a value that is not finite is only counted."""
    summary["count"] += 1
    if not math.isfinite(value):
        summary["nonfinite"] += 1
        return
    if summary["first_step"] is None:
        summary.update(first=value, first_step=step)
    summary.update(last=value, last_step=step)
    if summary["min"] is None or value < summary["min"]:
        summary.update(min=value, min_step=step)
    if summary["max"] is None or value > summary["max"]:
        summary.update(max=value, max_step=step)
    mean = summary["mean"] or 0.0
    summary["mean"] = mean + (value - mean) / (summary["count"] - summary["nonfinite"])


def load(conn: Connection, run: int) -> dict[int, Summary]:
    rows = conn.execute(select(METRIC_SUMMARY).where(METRIC_SUMMARY.c.run_id == run))
    return {row.key_id: row._asdict() for row in rows}


def rebuild(conn: Connection, run: int, from_step: int) -> None:
    """Recompute the summaries of metrics whose values beyond a step were hidden."""
    summary = METRIC_SUMMARY.c
    late = func.max(summary.last_step, summary.min_step, summary.max_step) > from_step
    of_run = METRIC_SUMMARY.delete().where(summary.run_id == run, late | (summary.nonfinite > 0))
    keys = conn.scalars(of_run.returning(summary.key_id)).all()
    summaries = {key: new_summary(run, key) for key in keys}
    values = (
        select(METRIC.c.key_id, METRIC.c.step, METRIC.c.value)
        .where(METRIC.c.run_id == run, METRIC.c.key_id.in_(summaries))
        .order_by(METRIC.c.key_id, METRIC.c.step)
    )
    for key, step, value in conn.execute(values):
        add(summaries[key], step, value)
    rows = [row for row in summaries.values() if row["count"]]
    if rows:
        conn.execute(METRIC_SUMMARY.insert(), rows)
