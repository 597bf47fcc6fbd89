"""Summaries of the metrics of a run, updated with every value."""

import math
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, select

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
    rows = conn.execute(select(METRIC_SUMMARY).filter_by(run_id=run))
    return {row.key_id: row._asdict() for row in rows}


def rebuild(conn: Connection, run: int) -> None:
    """Recompute the summaries of a run, of whose metrics some values were hidden."""
    conn.execute(METRIC_SUMMARY.delete().filter_by(run_id=run))
    summaries: dict[int, Summary] = {}
    columns = METRIC.c
    values = select(columns.key_id, columns.step, columns.value).where(columns.run_id == run)
    for key, step, value in conn.execute(values.order_by(columns.key_id, columns.step)):
        add(summaries.setdefault(key, new_summary(run, key)), step, value)
    if summaries:
        conn.execute(METRIC_SUMMARY.insert(), [*summaries.values()])
