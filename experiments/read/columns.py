"""The language of columns and filters.

Any setting or metric is a column, a sort key or an operand of a filter: `name` is a field,
`=optimizer.learning_rate` a setting, `best reward` and `last kl` a metric; `as lr` gives a label.

In a filter words match in name, tags and note. `status:running`, `tag:good`, `reward>0.5`,
`last.kl<0.1`, `cfg.optimizer.learning_rate>=1e-5`; `!` is not, `|` is or, brackets group; adjacent
terms must all hold.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_args

from sqlalchemy import (
    ColumnElement,
    Executable,
    String,
    and_,
    case,
    exists,
    func,
    literal,
    not_,
    or_,
    select,
    true,
    type_coerce,
)

from grpo_engine.config.conditions import (
    Either,
    Every,
    Node,
    Not,
    Term,
    Text,
    number_of,
    parse,
)
from grpo_engine.errors import nearest, quoted
from grpo_engine.metrics import METRICS, spec
from grpo_tui.experiments.db.tables import (
    METRIC_KEY,
    METRIC_SUMMARY,
    RUN,
    RUN_LIST,
    RUN_PARAM,
    RUN_TAG,
)
from grpo_tui.experiments.db.texts import escape
from grpo_tui.experiments.errors import QueryError, check_choice
from grpo_tui.experiments.values import Status, column_label, setting_path

Condition = ColumnElement[Any]
_CONTAINS = ("name", "note", "model", "task", "error", "device", "code")
STATS = ("best", "last", "first", "min", "max", "mean", "count")
FIELDS: Mapping[str, Condition] = {name: RUN.c[name] for name in RUN_LIST if name != "bytes"} | {
    "id": RUN.c.short,
    "steps": RUN.c.total_steps,
    "created": RUN.c.created_at,
    "started": RUN.c.started_at,
    "ended": RUN.c.ended_at,
    "code": RUN.c.code_version,
    "data": RUN.c.dataset_fingerprint,
    "status": func.derived(RUN.c.id, RUN.c.status),
}


class Names:
    """The names of settings and metrics in the store, read on first use."""

    def __init__(self, column: Callable[[Executable], Iterable[str]]) -> None:
        self._column = column

    @cached_property
    def settings(self) -> frozenset[str]:
        return frozenset(self._column(select(RUN_PARAM.c.path).distinct()))

    @cached_property
    def metrics(self) -> frozenset[str]:
        return frozenset(self._column(select(METRIC_KEY.c.name)))


@dataclass(frozen=True, slots=True)
class Column:
    """A value of each run."""

    label: str
    value: Condition  # for display; settings are JSON
    compared: Condition  # for filters and sorting; settings are numbers or texts
    field: str = ""  # empty for settings and metrics


def parse_column(text: str, names: Names) -> Column:
    body, label = text.partition(" as ")[0].strip(), column_label(text)
    if body in FIELDS:
        return Column(label, FIELDS[body], FIELDS[body], body)
    stat = re.fullmatch(rf"({'|'.join(STATS)})(?:\s+|\.)(\S+)", body)
    name = stat[2] if stat else body
    if name in METRICS or name in names.metrics:
        value = _summary(name, stat[1] if stat else "best")
        return Column(label, value, value)
    name = setting_path(body) or name
    if name in names.settings:
        stored = _setting(name)
        compared = case((func.json_valid(stored), func.json_extract(stored, "$")), else_=stored)
        return Column(label, type_coerce(stored, RUN_PARAM.c.value.type), compared)
    choices = [*FIELDS, *names.metrics, *METRICS, *names.settings]
    raise QueryError(
        f"there is no field, setting or metric {quoted(name)}{nearest(name, choices)}; "
        "write settings as =section.name and metrics as `best reward` or `last kl`"
    )


def _summary(key: str, stat: str) -> Condition:
    """A column of a metric's summary; `best` depends on the metric's direction."""
    if stat == "best":
        stat = {"up": "max", "down": "min", "none": "last"}[spec(key).direction]
    key_id = select(METRIC_KEY.c.id).filter_by(name=key).scalar_subquery()
    return (
        select(METRIC_SUMMARY.c[stat])
        .where(METRIC_SUMMARY.c.run_id == RUN.c.id, METRIC_SUMMARY.c.key_id == key_id)
        .correlate(RUN)
        .scalar_subquery()
    )


def _setting(path: str) -> Condition:
    """A setting as it is stored, or as the recipe sets it."""
    stored = func.nullif(type_coerce(RUN_PARAM.c.value, String), "null")
    query = select(stored).where(RUN_PARAM.c.run_id == RUN.c.id, RUN_PARAM.c.path == path)
    by_recipe = func.in_force(RUN.c.config, path)
    return func.coalesce(query.correlate(RUN).scalar_subquery(), by_recipe)


def compile_filter(text: str, names: Names) -> Condition:
    if not text.strip():
        return true()
    try:
        return _compile(parse(text, "the filter"), names)
    except ValueError as error:
        raise QueryError(str(error)) from None


def _compile(node: Node, names: Names) -> Condition:
    match node:
        case Text(text):
            return or_(
                _like(RUN.c.name, text),
                _like(RUN.c.note, text),
                RUN.c.short.startswith(text, autoescape=True),
                _tagged(_like(RUN_TAG.c.tag, text)),
            )
        case Term():
            return _condition(node, names)
        case Not(parts):
            return not_(func.coalesce(_compile(parts[0], names), 0))
        case Every(parts):
            return and_(*(_compile(part, names) for part in parts))
        case Either(parts):
            return or_(*(_compile(part, names) for part in parts))


def _condition(term: Term, names: Names) -> Condition:
    key, value = term.key, term.value
    if key == "tag":
        tagged = _tagged(func.lower(RUN_TAG.c.tag) == func.lower(literal(escape(value), String)))
        return not_(tagged) if term.op == "!=" else tagged
    column = parse_column(key, names)
    if column.field == "status" and term.op != "~":
        check_choice("status", value.lower(), get_args(Status))
    if term.op == "~" or (term.op == ":" and column.field in _CONTAINS):
        return _like(column.compared, value)
    return _compare(column.compared, term)


def _tagged(condition: Condition) -> Condition:
    return exists().where(RUN_TAG.c.run_id == RUN.c.id, condition)


def _like(column: Condition, text: str) -> Condition:
    """Whether the column contains the text, whatever the case."""
    return type_coerce(column, String).contains(escape(text), autoescape=True)


def _compare(column: Condition, term: Term) -> Condition:
    operator = {":": "=", "==": "="}.get(term.op, term.op)
    number = _number(term.value)
    if number is not None:
        return column.op(operator)(literal(number))
    if operator not in ("=", "!="):
        if re.match(r"\d{4}-\d\d", term.value):
            return column.op(operator)(literal(term.value, String))
        raise QueryError(
            f"{term.key}{term.op}{term.value}: {quoted(term.value)} is not a number; {term.op} "
            "compares numbers"
        )
    return column.op(operator)(literal(escape(term.value), String).collate("NOCASE"))


def _number(text: str) -> float | None:
    if text.lower() in ("true", "false"):
        return float(text.lower() == "true")
    return number_of(text)
