"""Summaries of the metrics of a run, updated with every value."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, case, func, select
from sqlalchemy.dialects.sqlite import insert

from grpo_tui.experiments.db.tables import METRIC, METRIC_SUMMARY

PAGE = 10_000

_insertion = insert(METRIC_SUMMARY)
_old, _new = METRIC_SUMMARY.c, _insertion.excluded
# Conditions under which a new value replaces the old one.
REPLACES = {
    "first": _new.first_step < _old.first_step,  # an evaluation may end after later steps
    "last": _new.last_step >= _old.last_step,
    "min": _new.min < _old.min,
    "max": _new.max > _old.max,
}
_is_finite = _new.nonfinite == 0
ADDITION = _insertion.on_conflict_do_update(
    set_={
        **{
            column: case(
                (_is_finite & (_old[name].is_(None) | replaces), _new[column]), else_=_old[column]
            )
            for name, replaces in REPLACES.items()
            for column in (name, f"{name}_step")
        },
        "mean": func.coalesce(
            _old.mean + (_new.mean - _old.mean) / (_old.count - _old.nonfinite + 1),
            _new.mean,
            _old.mean,
        ),
        "count": _old.count + 1,
        "nonfinite": _old.nonfinite + _new.nonfinite,
    }
)


def add(conn: Connection, values: Iterable[Mapping[str, Any]]) -> None:
    """Add rows of metrics; a value that is not finite is only counted."""
    rows = []
    for row in values:
        finite = math.isfinite(row["value"])
        value, step = (row["value"], row["step"]) if finite else (None, None)
        rows.append(
            {
                "run_id": row["run_id"],
                "key_id": row["key_id"],
                "mean": value,
                "count": 1,
                "nonfinite": int(not finite),
                **dict.fromkeys(REPLACES, value),
                **dict.fromkeys((f"{name}_step" for name in REPLACES), step),
            }
        )
    conn.execute(ADDITION, rows)


def rebuild(conn: Connection, run: int) -> None:
    """Recompute the summaries of a run after metric values were removed."""
    conn.execute(METRIC_SUMMARY.delete().filter_by(run_id=run))
    values = select(METRIC).filter_by(run_id=run).order_by(METRIC.c.key_id, METRIC.c.step)
    for page in conn.execute(values).partitions(PAGE):
        add(conn, (row._asdict() for row in page))
