"""The language of conditions: what filters of runs, `stop_when` and rules for right answers share.

`kl > .3` compares, adjacent terms must all hold, `|` is or, `!` is not, brackets group. What a name
or a single word means is up to the reader of the tree.
"""

import math
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from grpo_engine.errors import quoted

MOST_PARTS, MOST_BRACKETS = 500, 50
_TOKEN = re.compile(
    r"""\s*(?:(?P<mark>[()|!])
    |(?P<key>[A-Za-z_][\w./@-]*)
        (?P<op>\s*(?:>=|<=|!=|==|=|>|<)\s*|[~:])(?P<value>"[^"]*"|[^\s()|]+)
    |(?P<word>"[^"]*"|[^\s()|!]+))""",
    re.VERBOSE,
)
_HALF = re.compile(r"[A-Za-z_][\w./@-]*(>=|<=|!=|==|[=<>~:])|(>=|<=|==|[=<>~:]).*")
OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
}


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Term:
    key: str
    op: str
    value: str


@dataclass(frozen=True, slots=True)
class Compound:
    parts: tuple[Any, ...]  # nodes, or what a reader of the tree made of them


class Not(Compound):
    """Its one part must not hold."""


class Every(Compound):
    """All parts must hold."""


class Either(Compound):
    """One of the parts must hold."""


Node = Text | Term | Not | Every | Either


def parse(text: str, title: str) -> Node:
    """Read a condition that is not empty; `title` names it in errors, which are ValueErrors."""
    parser = _Parser(text, title)
    result = parser.either()
    if parser.tokens:
        raise ValueError(f"{parser.name} has an extra {quoted(parser.tokens[0])}")
    return result


def number_of(text: str) -> float | None:
    """The number that a condition compares with; None for text, ValueError if no float holds it."""
    try:
        value = float(text)
    except ValueError:
        return None
    if not math.isfinite(value) or (value == 0 and re.search("[1-9]", re.split("[eE]", text)[0])):
        raise ValueError(f"{quoted(text)} is no number that a measurement can be compared with")
    return value


class _Parser:
    """Recursive-descent parser over the tokens of a condition."""

    def __init__(self, text: str, title: str) -> None:
        self.name = f"{title} {quoted(text)}"
        self.tokens = list(self._tokens(text.rstrip()))
        marks = sum(token in ("(", "!") for token in self.tokens)
        if len(self.tokens) > MOST_PARTS or marks > MOST_BRACKETS:
            raise ValueError(
                f"{self.name} has {len(self.tokens)} parts, {marks} of them brackets or !; it may "
                f"have {MOST_PARTS}, {MOST_BRACKETS} of them brackets or !"
            )

    def _tokens(self, text: str) -> "Iterator[Text | Term | str]":
        position = 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise ValueError(f"{self.name} is unclear at character {position + 1}")
            value = match["value"] or match["word"] or ""
            if match["word"] and _HALF.fullmatch(value):
                raise ValueError(
                    f"{self.name} has half a comparison, {quoted(value)}; write NAME>VALUE, or "
                    "quotes around a word"
                )
            if len(value) > 1 and value[0] == value[-1] == '"':
                value = value[1:-1]
            if match["key"]:
                yield Term(match["key"], match["op"].strip(), value)
            else:
                yield match["mark"] or Text(value)
            position = match.end()

    def either(self) -> Node:
        """Read conditions joined by `|`."""
        parts = [self.every()]
        while self._next_is("|"):
            self.tokens.pop(0)
            parts.append(self.every())
        return parts[0] if len(parts) == 1 else Either(tuple(parts))

    def every(self) -> Node:
        """Read adjacent conditions."""
        parts: list[Node] = []
        while self.tokens and self.tokens[0] not in ("|", ")"):
            parts.append(self.single())
        if not parts:
            raise ValueError(f"{self.name} has an empty side of `|` or empty brackets")
        return parts[0] if len(parts) == 1 else Every(tuple(parts))

    def single(self) -> Node:
        """Read one condition, negated or in brackets."""
        token = self.tokens.pop(0)
        if token == "!":
            if not self.tokens:
                raise ValueError(f"{self.name} ends with a `!`")
            return Not((self.single(),))
        if token == "(":
            inside = self.either()
            if not self._next_is(")"):
                raise ValueError(f"{self.name} has a bracket that is not closed")
            self.tokens.pop(0)
            return inside
        if isinstance(token, Text | Term):
            return token
        raise ValueError(f"{self.name} has an extra {quoted(token)}")

    def _next_is(self, mark: str) -> bool:
        return bool(self.tokens) and self.tokens[0] == mark
