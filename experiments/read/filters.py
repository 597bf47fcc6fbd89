"""The filter language, compiled to a condition on `run`.

Words match in name, tags and note. `status:running`, `tag:good`, `reward>0.5`, `last.kl<0.1`,
`cfg.optimizer.learning_rate>=1e-5`; `!` is not, `|` is or, brackets group; adjacent terms must all
hold.
"""

import re
from typing import Any, get_args

from sqlalchemy import (
    ColumnElement,
    String,
    and_,
    exists,
    func,
    literal,
    not_,
    or_,
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
from grpo_tui.experiments.db.tables import RUN, RUN_TAG
from grpo_tui.experiments.db.texts import escape
from grpo_tui.experiments.errors import QueryError
from grpo_tui.experiments.read.columns import Names, parse_column
from grpo_tui.experiments.values import Status

_CONTAINS = ("name", "note", "model", "task", "error", "device", "code")

Condition = ColumnElement[Any]


def compile_filter(text: str, names: Names) -> Condition:
    if not text.strip():
        return true()
    try:
        condition = parse(text, "the filter")
    except ValueError as error:
        raise QueryError(str(error)) from None
    return _compile(condition, names)


def _compile(node: Node, names: Names) -> Condition:
    match node:
        case Text(text):
            return or_(
                _like(RUN.c.name, text), _like(RUN.c.note, text),
                _like(RUN.c.short, text, start=True), _tagged(_like(RUN_TAG.c.tag, text)),
            )  # fmt: skip
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
        if term.op not in (":", "=", "==", "!="):
            raise QueryError(f"tags are compared as tag:{value}, not with {term.op}")
        tagged = _tagged(func.lower(RUN_TAG.c.tag) == func.lower(_literal(value)))
        return not_(tagged) if term.op == "!=" else tagged
    column = parse_column(key, names)
    if term.op == ":" and column.kind != "field":
        raise QueryError(f"{key}: is for fields; compare {key} with = < > <= >= != or ~")
    if column.path == "status" and term.op != "~":
        _check_status(value)
    if term.op == "~" or (term.op == ":" and column.path in _CONTAINS):
        return _like(column.compared, value)
    return _compare(column.compared, term, column.kind == "setting")


def _check_status(value: str) -> None:
    statuses = get_args(Status)
    if value.lower() not in statuses:
        raise QueryError(
            f"there is no status {quoted(value)}{nearest(value, statuses)}; "
            f"choose from {', '.join(statuses)}"
        )


def _tagged(condition: Condition) -> Condition:
    return exists().where(RUN_TAG.c.run_id == RUN.c.id, condition)


def _literal(text: str) -> Condition:
    return literal(escape(text), String)


def _like(column: Condition, text: str, *, start: bool = False) -> Condition:
    """Whether the column contains the text, or starts with it."""
    pattern = re.sub(r"([\\%_])", r"\\\1", escape(text)) + "%"
    return type_coerce(column, String).like(pattern if start else f"%{pattern}", escape="\\")


def _compare(column: Condition, term: Term, is_setting: bool) -> Condition:
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
    if is_setting:  # texts are stored as JSON, including the quotes
        column = func.trim(column, '"')
    return column.op(operator)(_literal(term.value).collate("NOCASE"))


def _number(text: str) -> float | None:
    if text.lower() in ("true", "false"):
        return float(text.lower() == "true")
    try:
        return number_of(text)
    except ValueError as error:
        raise QueryError(str(error)) from None
