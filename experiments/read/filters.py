"""The filter language, compiled to SQL over `run`.

Words match in name, tags and note. `status:running`, `tag:good`, `reward>0.5`, `last.kl<0.1`,
`cfg.optimizer.learning_rate>=1e-5`; `!` is not, `|` is or, brackets group; adjacent terms must all
hold.
"""

import re
from dataclasses import dataclass
from typing import get_args

from experiments.db.texts import escape
from experiments.errors import QueryError
from experiments.read.columns import Known, nearest, parse_column
from experiments.values import Status

_TOKEN = re.compile(
    r"""\s*(?:(?P<mark>[()|!])
    |(?P<key>[A-Za-z_][\w./@-]*)(?P<op>>=|<=|!=|==|=|>|<|~|:)(?P<value>"[^"]*"|[^\s()|]+)
    |(?P<word>"[^"]*"|[^\s()|!]+))""",
    re.VERBOSE,
)
MOST_PARTS, MOST_BRACKETS = 500, 50
_CONTAINS = ("name", "note", "model", "task", "error", "device", "code")


@dataclass(slots=True)
class _Token:
    mark: str
    key: str
    op: str
    value: str
    at: int


Sql = tuple[str, list[object]]


def compile_filter(text: str, known: Known) -> Sql:
    """Compile a filter to a condition and its parameters."""
    if not text.strip():
        return "1", []
    parser = _Parser(text, known)
    condition = parser.any_of()
    if parser.tokens:
        raise QueryError(
            f"the filter {text!r} has an extra {parser.tokens[0].mark!r} "
            f"at character {parser.tokens[0].at + 1}"
        )
    return condition


class _Parser:
    """Recursive-descent parser over the tokens of a filter."""

    def __init__(self, text: str, known: Known) -> None:
        self.text, self.known = text, known
        self.tokens = _tokens(text)
        marks = sum(token.mark in ("(", "!") for token in self.tokens)
        if len(self.tokens) > MOST_PARTS or marks > MOST_BRACKETS:
            raise QueryError(
                f"the filter {text[:40]!r}… has {len(self.tokens)} parts, {marks} of them brackets "
                f"or !; it may have {MOST_PARTS}, {MOST_BRACKETS} of them brackets or !"
            )

    def any_of(self) -> Sql:
        """Parse terms joined by `|`."""
        parts = [self.all_of()]
        while self._next_is("|"):
            self.tokens.pop(0)
            parts.append(self.all_of())
        return _join(" OR ", parts)

    def all_of(self) -> Sql:
        """Parse adjacent terms, all of which must hold."""
        parts = []
        while self.tokens and self.tokens[0].mark not in ("|", ")"):
            parts.append(self.term())
        if not parts:
            raise QueryError(f"the filter {self.text!r} has an empty side of `|` or empty brackets")
        return _join(" AND ", parts)

    def term(self) -> Sql:
        """Parse one condition, optionally negated or in brackets."""
        token = self.tokens.pop(0)
        if token.mark == "!":
            if not self.tokens:
                raise QueryError(f"the filter {self.text!r} ends with a `!`")
            sql, values = self.term()
            return f"NOT coalesce({sql}, 0)", values
        if token.mark == "(":
            inside = self.any_of()
            if not self._next_is(")"):
                raise QueryError(f"the filter {self.text!r} has a bracket that is not closed")
            self.tokens.pop(0)
            return inside
        return self._condition(token) if token.op else _word(token.value)

    def _next_is(self, mark: str) -> bool:
        return bool(self.tokens) and self.tokens[0].mark == mark

    def _condition(self, token: _Token) -> Sql:
        key, value = token.key, token.value
        if key == "tag":
            tagged = (
                "EXISTS (SELECT 1 FROM run_tag WHERE run_id = run.id AND lower(tag) = lower(?))"
            )
            if token.op not in (":", "=", "==", "!="):
                raise QueryError(f"tags are compared as tag:{value}, not with {token.op}")
            return (f"NOT {tagged}" if token.op == "!=" else tagged), [escape(value)]
        column = parse_column(key, self.known)
        if token.op == ":" and column.kind != "field":
            raise QueryError(f"{key}: is for fields; compare {key} with = < > <= >= != or ~")
        if column.path == "status" and token.op != "~":
            _check_status(value)
        sql, values = column.sql()
        return _compare(sql, list(values), token, column.path in _CONTAINS)


def _check_status(value: str) -> None:
    statuses = get_args(Status)
    if value.lower() not in statuses:
        raise QueryError(
            f"there is no status {value!r}{nearest(value, statuses)}; "
            f"choose from {', '.join(statuses)}"
        )


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    place = 0
    while place < len(text.rstrip()):
        match = _TOKEN.match(text, place)
        if match is None:
            raise QueryError(f"the filter {text!r} is unclear at character {place + 1}")
        value = match["value"] or match["word"] or ""
        if len(value) > 1 and value[0] == value[-1] == '"':
            value = value[1:-1]
        found.append(
            _Token(match["mark"] or "", match["key"] or "", match["op"] or "", value, place)
        )
        place = match.end()
    return found


def _join(word: str, parts: list[Sql]) -> Sql:
    if len(parts) == 1:
        return parts[0]
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


def _compare(sql: str, values: list[object], token: _Token, contains: bool) -> Sql:
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
            f"{token.key}{op}{token.value}: {token.value!r} is not a number; {op} compares numbers"
        )
    if "run_param" in sql:
        # text settings are stored as JSON, including the quotes
        return f"trim({sql}, '\"') {symbol} ? COLLATE NOCASE", [*values, escape(token.value)]
    return f"{sql} {symbol} ? COLLATE NOCASE", [*values, escape(token.value)]


def _number(text: str) -> float | None:
    if text.lower() in ("true", "false"):
        return float(text.lower() == "true")
    try:
        return float(text)
    except ValueError:
        return None
