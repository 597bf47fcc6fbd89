"""The filter language, compiled to SQL over `run`.

Words match in name, tags and note. `status:running`, `tag:good`, `reward>0.5`, `last.kl<0.1`,
`cfg.optimizer.learning_rate>=1e-5`; `!` is not, `|` is or, brackets group; adjacent terms must all
hold.
"""

import re
from typing import get_args

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
from grpo_tui.experiments.db.texts import escape
from grpo_tui.experiments.errors import QueryError
from grpo_tui.experiments.read.columns import Known, parse_column
from grpo_tui.experiments.values import Status

_CONTAINS = ("name", "note", "model", "task", "error", "device", "code")

Sql = tuple[str, list[object]]


def compile_filter(text: str, known: Known) -> Sql:
    if not text.strip():
        return "1", []
    try:
        condition = parse(text, "the filter")
    except ValueError as error:
        raise QueryError(str(error)) from None
    return _sql(condition, known)


def _sql(node: Node, known: Known) -> Sql:
    match node:
        case Text(text):
            return _word(text)
        case Term():
            return _condition(node, known)
        case Not(parts):
            sql, values = _sql(parts[0], known)
            return f"NOT coalesce({sql}, 0)", values
        case Every(parts):
            return _join(" AND ", [_sql(part, known) for part in parts])
        case Either(parts):
            return _join(" OR ", [_sql(part, known) for part in parts])


def _condition(term: Term, known: Known) -> Sql:
    key, value = term.key, term.value
    if key == "tag":
        tagged = "EXISTS (SELECT 1 FROM run_tag WHERE run_id = run.id AND lower(tag) = lower(?))"
        if term.op not in (":", "=", "==", "!="):
            raise QueryError(f"tags are compared as tag:{value}, not with {term.op}")
        return (f"NOT {tagged}" if term.op == "!=" else tagged), [escape(value)]
    column = parse_column(key, known)
    if term.op == ":" and column.kind != "field":
        raise QueryError(f"{key}: is for fields; compare {key} with = < > <= >= != or ~")
    if column.path == "status" and term.op != "~":
        _check_status(value)
    sql, values = column.sql()
    return _compare(sql, list(values), term, column.path in _CONTAINS)


def _check_status(value: str) -> None:
    statuses = get_args(Status)
    if value.lower() not in statuses:
        raise QueryError(
            f"there is no status {quoted(value)}{nearest(value, statuses)}; "
            f"choose from {', '.join(statuses)}"
        )


def _join(word: str, parts: list[Sql]) -> Sql:
    return (
        "(" + word.join(sql for sql, _ in parts) + ")",
        [value for _, values in parts for value in values],
    )


def _like(text: str) -> str:
    return "%" + re.sub(r"([\\%_])", r"\\\1", escape(text)) + "%"


def _word(word: str) -> Sql:
    pattern = _like(word)
    return (
        r"(run.name LIKE ? ESCAPE '\' OR run.note LIKE ? ESCAPE '\' OR run.short LIKE ? ESCAPE '\' "
        r"OR EXISTS (SELECT 1 FROM run_tag WHERE run_id = run.id AND tag LIKE ? ESCAPE '\'))",
        [pattern, pattern, pattern[1:], pattern],
    )


def _compare(sql: str, values: list[object], token: Term, contains: bool) -> Sql:
    op = token.op
    if op == "~" or (op == ":" and contains):
        return rf"{sql} LIKE ? ESCAPE '\'", [*values, _like(token.value)]
    symbol = {":": "=", "==": "="}.get(op, op)
    number = _number(token.value)
    if number is not None:
        return f"{sql} {symbol} ?", [*values, number]
    if symbol not in ("=", "!="):
        if re.match(r"\d{4}-\d\d", token.value):
            return f"{sql} {symbol} ?", [*values, token.value]
        raise QueryError(
            f"{token.key}{op}{token.value}: {quoted(token.value)} is not a number; {op} "
            "compares numbers"
        )
    if "run_param" in sql:
        # text settings are stored as JSON, including the quotes
        return f"trim({sql}, '\"') {symbol} ? COLLATE NOCASE", [*values, escape(token.value)]
    return f"{sql} {symbol} ? COLLATE NOCASE", [*values, escape(token.value)]


def _number(text: str) -> float | None:
    if text.lower() in ("true", "false"):
        return float(text.lower() == "true")
    try:
        return number_of(text)
    except ValueError as error:
        raise QueryError(str(error)) from None
