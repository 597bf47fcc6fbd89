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
class Column:
    """A value of each run."""

    label: str
    kind: Literal["field", "setting", "metric"]
    path: str
    stat: str = ""

    @property
    def shown(self) -> ColumnElement[Any]:
        """The value for display: a setting as JSON."""
        if self.kind == "setting":
            stored = _setting(self.path, _json(), func.in_force(RUN.c.config, self.path))
            return type_coerce(stored, RUN_PARAM.c.value.type)
        return self.compared

    @property
    def compared(self) -> ColumnElement[Any]:
        """The value for filters and sorting: a setting as a number, or as JSON if it is none."""
        if self.kind == "field":
            return FIELDS[self.path]
        if self.kind == "setting":
            return _setting(
                self.path, func.coalesce(RUN_PARAM.c.number, _json()),
                func.number_in_force(RUN.c.config, self.path),
                func.in_force(RUN.c.config, self.path),
            )  # fmt: skip
        key = select(METRIC_KEY.c.id).where(METRIC_KEY.c.name == self.path).scalar_subquery()
        return (
            select(METRIC_SUMMARY.c[stat_column(self.path, self.stat)])
            .where(METRIC_SUMMARY.c.run_id == RUN.c.id, METRIC_SUMMARY.c.key_id == key)
            .correlate(RUN)
            .scalar_subquery()
        )


def _json() -> ColumnElement[Any]:
    return func.nullif(type_coerce(RUN_PARAM.c.value, String), "null")


def _setting(
    path: str, stored: ColumnElement[Any], *in_force: ColumnElement[Any]
) -> ColumnElement[Any]:
    """A setting as it is stored, or as the recipe sets it."""
    query = select(stored).where(RUN_PARAM.c.run_id == RUN.c.id, RUN_PARAM.c.path == path)
    return func.coalesce(query.correlate(RUN).scalar_subquery(), *in_force)


def stat_column(key: str, stat: str) -> str:
    """Return the column of a metric's summary; `best` depends on the metric's direction."""
    if stat == "best":
        return {"up": "max", "down": "min", "none": "last"}[spec(key).direction]
    return stat


def parse_columns(text: str | Sequence[str], known: "Known") -> tuple[Column, ...]:
    """Parse columns, given as one text with commas or as several texts."""
    parts = text.split(",") if isinstance(text, str) else text
    return tuple(parse_column(part, known) for part in parts if part.strip())


def parse_column(text: str, known: "Known") -> Column:
    body, label = text.partition(" as ")[0].strip(), column_label(text)
    words = body.split()
    if path := setting_path(body):
        if path not in known.settings:
            raise QueryError(f"there is no setting {quoted(path)}{nearest(path, known.settings)}")
        return Column(label, "setting", path)
    if len(words) == 2 and words[0] in STATS:
        return Column(label, "metric", _metric(words[1], known), words[0])
    if body in FIELDS:
        return Column(label, "field", body)
    if body in known.settings:
        return Column(label, "setting", body)
    dotted = re.fullmatch(rf"({'|'.join(STATS)})\.(.+)", body)
    if dotted:
        return Column(label, "metric", _metric(dotted[2], known), dotted[1])
    return Column(label, "metric", _metric(body, known), "best")


def _metric(name: str, known: "Known") -> str:
    if name in known.metrics or name in METRICS:
        return name
    everything = [*FIELDS, *known.metrics, *METRICS, *known.settings]
    raise QueryError(
        f"there is no field, setting or metric {quoted(name)}{nearest(name, everything)}; "
        "write settings as =section.name and metrics as `best reward` or `last kl`"
    )


@dataclass(frozen=True, slots=True)
class Known:
    """The names of settings and metrics in the store."""

    settings: frozenset[str]
    metrics: frozenset[str]
