"""The column language: any setting or metric as a column, a sort key or an operand of a filter.

`name` is a field, `=optimizer.learning_rate` a setting, `best reward` and `last kl` a metric; `as
lr` gives a label.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from grpo_engine.errors import nearest
from grpo_engine.metrics import METRICS, spec
from grpo_tui.experiments.db.texts import escape
from grpo_tui.experiments.errors import QueryError

STATS = ("best", "last", "first", "min", "max", "mean", "count")
FIELDS = {
    "id": "run.short", "uid": "run.uid", "name": "run.name",
    "status": "derived(run.id, run.status)",
    "model": "run.model", "task": "run.task", "recipe": "run.recipe", "seed": "run.seed",
    "step": "run.step", "steps": "run.total_steps", "tokens": "run.tokens",
    "elapsed": "run.elapsed", "created": "run.created_at", "started": "run.started_at",
    "ended": "run.ended_at", "device": "run.device", "note": "run.note", "error": "run.error",
    "bytes": "run.bytes", "archived": "run.archived", "code": "run.code_version",
    "data": "run.dataset_fingerprint",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Column:
    """A value of each run, and the SQL that computes it."""

    label: str
    kind: Literal["field", "setting", "metric"]
    path: str
    stat: str = ""

    def sql(self, *, shown: bool = False) -> tuple[str, list[str]]:
        """Return the SQL over a row of `run`, for comparing or for display, and its parameters."""
        if self.kind == "field":
            return FIELDS[self.path], []
        if self.kind == "setting":
            stored, forced = "nullif(value, 'null')", "in_force(run.config, ?)"
            if not shown:
                stored = f"coalesce(number, {stored})"
                forced = f"number_in_force(run.config, ?), {forced}"
            query = f"SELECT {stored} FROM run_param WHERE run_id = run.id AND path = ?"
            sql = f"coalesce(({query}), {forced})"
            return sql, [escape(self.path)] * sql.count("?")
        return (
            f"(SELECT {stat_column(self.path, self.stat)} FROM metric_summary WHERE run_id = run.id"
            " AND key_id = (SELECT id FROM metric_key WHERE name = ?))",
            [escape(self.path)],
        )


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
    body, _, label = text.partition(" as ")
    body, label = body.strip(), label.strip()
    words = body.split()
    if body.startswith("=") or body.startswith("cfg."):
        path = body.removeprefix("=").removeprefix("cfg.").strip()
        if path not in known.settings:
            raise QueryError(f"there is no setting {path!r}{nearest(path, known.settings)}")
        return Column(label or path, "setting", path)
    if len(words) == 2 and words[0] in STATS:
        return Column(label or body, "metric", _metric(words[1], known), words[0])
    if body in FIELDS:
        return Column(label or body, "field", body)
    if body in known.settings:
        return Column(label or body, "setting", body)
    dotted = re.fullmatch(rf"({'|'.join(STATS)})\.(.+)", body)
    if dotted:
        return Column(label or body, "metric", _metric(dotted[2], known), dotted[1])
    return Column(label or body, "metric", _metric(body, known), "best")


def _metric(name: str, known: "Known") -> str:
    if name in known.metrics or name in METRICS:
        return name
    everything = [*FIELDS, *known.metrics, *METRICS, *known.settings]
    raise QueryError(
        f"there is no field, setting or metric {name!r}{nearest(name, everything)}; "
        "write settings as =section.name and metrics as `best reward` or `last kl`"
    )


@dataclass(frozen=True, slots=True)
class Known:
    """The names of settings and metrics in the store."""

    settings: frozenset[str]
    metrics: frozenset[str]
