"""The column language: any setting or metric as a column, a sort key or an operand of a filter.

`name` is a field, `=optimizer.learning_rate` a setting, `best reward` and `last kl` a metric; `as
lr` gives a label.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import ColumnElement, String, func, select, type_coerce

from grpo_engine.errors import nearest, quoted
from grpo_engine.metrics import METRICS, spec
from grpo_tui.experiments.db.tables import METRIC_KEY, METRIC_SUMMARY, RUN, RUN_PARAM
from grpo_tui.experiments.errors import QueryError
from grpo_tui.experiments.values import column_label, setting_path

STATS = ("best", "last", "first", "min", "max", "mean", "count")
FIELDS: Mapping[str, ColumnElement[Any]] = {
    "id": RUN.c.short, "steps": RUN.c.total_steps, "created": RUN.c.created_at,
    "started": RUN.c.started_at, "ended": RUN.c.ended_at, "code": RUN.c.code_version,
    "data": RUN.c.dataset_fingerprint, "status": func.derived(RUN.c.id, RUN.c.status),
} | {name: RUN.c[name] for name in (
    "uid", "name", "model", "task", "recipe", "seed", "step", "tokens", "elapsed", "device", "note",
    "error", "bytes", "archived",
)}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Names:
    """The names of settings and metrics in the store."""

    settings: frozenset[str] = frozenset()
    metrics: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Column:
    """A value of each run."""

    label: str
    kind: Literal["field", "setting", "metric"]
    path: str
    stat: str = ""

    @property
    def value(self) -> ColumnElement[Any]:
        """The value for display: a setting as JSON."""
        if self.kind != "setting":
            return self.compared
        value = self._setting(_json(), func.in_force(RUN.c.config, self.path))
        return type_coerce(value, RUN_PARAM.c.value.type)

    @property
    def compared(self) -> ColumnElement[Any]:
        """The value for filters and sorting: a setting as a number, or as JSON if it is none."""
        if self.kind == "field":
            return FIELDS[self.path]
        if self.kind == "setting":
            return self._setting(
                func.coalesce(RUN_PARAM.c.number, _json()),
                func.number_in_force(RUN.c.config, self.path),
                func.in_force(RUN.c.config, self.path),
            )
        key = select(METRIC_KEY.c.id).where(METRIC_KEY.c.name == self.path).scalar_subquery()
        return (
            select(METRIC_SUMMARY.c[stat_column(self.path, self.stat)])
            .where(METRIC_SUMMARY.c.run_id == RUN.c.id, METRIC_SUMMARY.c.key_id == key)
            .correlate(RUN)
            .scalar_subquery()
        )

    def _setting(
        self, stored: ColumnElement[Any], *in_force: ColumnElement[Any]
    ) -> ColumnElement[Any]:
        """A setting as it is stored, or as the recipe sets it."""
        query = select(stored).where(RUN_PARAM.c.run_id == RUN.c.id, RUN_PARAM.c.path == self.path)
        return func.coalesce(query.correlate(RUN).scalar_subquery(), *in_force)


def _json() -> ColumnElement[Any]:
    return func.nullif(type_coerce(RUN_PARAM.c.value, String), "null")


def stat_column(key: str, stat: str) -> str:
    """Return the column of a metric's summary; `best` depends on the metric's direction."""
    if stat == "best":
        return {"up": "max", "down": "min", "none": "last"}[spec(key).direction]
    return stat


def parse_columns(text: str | Sequence[str], names: Names) -> tuple[Column, ...]:
    """Parse columns, given as one text with commas or as several texts."""
    parts = text.split(",") if isinstance(text, str) else text
    return tuple(parse_column(part, names) for part in parts if part.strip())


def parse_column(text: str, names: Names) -> Column:
    body, label = text.partition(" as ")[0].strip(), column_label(text)
    if body in FIELDS:
        return Column(label, "field", body)
    path = setting_path(body)
    if path and path not in names.settings:
        raise QueryError(f"there is no setting {quoted(path)}{nearest(path, names.settings)}")
    if path or body in names.settings:
        return Column(label, "setting", path or body)
    stat = re.fullmatch(rf"({'|'.join(STATS)})(?:\s+|\.)(\S+)", body)
    name = stat[2] if stat else body
    if name in names.metrics or name in METRICS:
        return Column(label, "metric", name, stat[1] if stat else "best")
    everything = [*FIELDS, *names.metrics, *METRICS, *names.settings]
    raise QueryError(
        f"there is no field, setting or metric {quoted(name)}{nearest(name, everything)}; "
        "write settings as =section.name and metrics as `best reward` or `last kl`"
    )
