"""Column types: what a row holds in the values that Python uses.

A store is input: a value that its column cannot hold, or that cannot be read, becomes a
value of the column's type that shows as what is stored. It is noted for the reader, which says
whose it is.
"""

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, ClassVar, get_args, get_type_hints

from sqlalchemy.types import Boolean, Float, Integer
from sqlmodel.sql.sqltypes import AutoString

from grpo_engine import events as ev
from grpo_tui.experiments.db.numbers import dumps, known, loads
from grpo_tui.experiments.db.spans import read_spans, spans_json
from grpo_tui.experiments.db.texts import escape, unescape, visible
from grpo_tui.experiments.values import Status, UnreadableFloat, UnreadableInt

Convert = Callable[[Any], Any]
LONGEST = 80  # characters of a stored value
YEAR_10000 = 253_402_300_800  # in seconds
STATUSES = frozenset(get_args(Status))


@dataclass(frozen=True, slots=True)
class Damage:
    """A stored value that its column's type cannot read."""

    column: str  # table.column
    stored: Any

    def __str__(self) -> str:
        return f"{self.column} is {stored_text(self.stored)}"


_NOTED: ContextVar[set[Damage] | None] = ContextVar("damage", default=None)


@contextmanager
def collecting(damage: set[Damage]) -> Iterator[None]:
    """Add what is unreadable to a set while rows are read."""
    token = _NOTED.set(damage)
    try:
        yield
    finally:
        _NOTED.reset(token)


def stored_text(stored: Any) -> str:
    """What a row holds as printable text, bytes as SQL writes them; a long one is cut."""
    text = visible(f"x'{stored.hex()}'" if isinstance(stored, bytes) else str(stored))
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


class BadText(str):
    """Text that is not UTF-8."""

    data: bytes


def any_text(data: bytes) -> str:
    """Decode a text of the file; used in place of `str` where that fails."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        text = BadText(data.decode("utf-8", "backslashreplace"))
        text.data = data
        return text


class Readable:
    """Reads a column; subclasses say what is readable, and what takes its place."""

    def __init__(self, column: str = "", **options: Any) -> None:
        super().__init__(**options)
        self.column = column  # table.column

    def unreadable(self, stored: Any) -> Any:
        raise NotImplementedError

    def note(self, stored: Any) -> Any:
        noted = _NOTED.get()
        if noted is not None:
            noted.add(Damage(self.column, stored))
        return self.unreadable(stored)


class Whole(Readable, Integer):
    """A whole number."""

    cache_ok = True

    def unreadable(self, stored: Any) -> Any:
        return UnreadableInt.of(stored_text(stored))

    def result_processor(self, dialect: Any, coltype: Any) -> Convert:  # noqa: ARG002
        return lambda value: value if value is None or type(value) is int else self.note(value)


class Flag(Readable, Boolean):
    """Yes or no."""

    cache_ok = True

    def unreadable(self, stored: Any) -> Any:
        return UnreadableInt.of(stored_text(stored))

    def result_processor(self, dialect: Any, coltype: Any) -> Convert:  # noqa: ARG002
        names = {None: None, 0: False, 1: True}
        return lambda value: names[value] if value in names else self.note(value)


class Number(Readable, Float[float]):
    """A number, or NULL."""

    cache_ok = True
    null: ClassVar[float | None] = None

    def unreadable(self, stored: Any) -> Any:
        return UnreadableFloat.of(stored_text(stored))

    def result_processor(self, dialect: Any, coltype: Any) -> Convert:  # noqa: ARG002
        null = self.null

        def read(value: Any) -> Any:
            if type(value) is float:
                return value
            if value is None:
                return null
            return float(value) if type(value) is int else self.note(value)

        return read


class Moment(Number):
    """Seconds since 1970."""

    cache_ok = True

    def result_processor(self, dialect: Any, coltype: Any) -> Convert:
        read = super().result_processor(dialect, coltype)

        def moment(value: Any) -> Any:
            at = read(value)
            return self.note(value) if at is not None and not 0 <= at < YEAR_10000 else at

        return moment


class Real(Number):
    """A number that is always there: NULL is NaN."""

    cache_ok = True
    null = math.nan

    def bind_processor(self, dialect: Any) -> Convert:  # noqa: ARG002
        return known


class Text(Readable, AutoString):
    """Text, with escapes for what SQLite cannot hold."""

    cache_ok = True
    # static methods instead of `process_bind_param`, which costs a call more for each value
    write: Convert = staticmethod(escape)

    def unreadable(self, stored: Any) -> Any:
        return stored_text(stored)

    def bind_processor(self, dialect: Any) -> Convert:  # noqa: ARG002
        write = self.write
        return lambda value: None if value is None else write(value)

    def result_processor(self, dialect: Any, coltype: Any) -> Convert:  # noqa: ARG002
        note = self.note

        def convert(value: Any) -> Any:
            if type(value) is str:
                return unescape(value) if "\\" in value else value
            return None if value is None else note(value)

        return convert


class Parsed(Text):
    """Text of a form: `read` raises for another."""

    cache_ok = True
    read: Convert

    def result_processor(self, dialect: Any, coltype: Any) -> Convert:  # noqa: ARG002
        read, note = self.read, self.note

        def convert(value: Any) -> Any:
            if type(value) is not str:
                return None if value is None else note(value)
            try:
                return read(value)
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                return note(value)

        return convert


class Time(Parsed):
    """A time as ISO text, UTC."""

    cache_ok = True

    @staticmethod
    def read(text: str) -> str:
        datetime.fromisoformat(text)
        return text


class StatusText(Parsed):
    """The status of a run."""

    cache_ok = True

    @staticmethod
    def read(text: str) -> str:
        if text not in STATUSES:
            raise ValueError(text)
        return text


class Json(Parsed):
    """Any JSON, in ASCII and in its own order; an empty text is an empty object."""

    cache_ok = True
    kind: ClassVar[type] = object
    should_evaluate_none = True
    write = staticmethod(lambda value: json.dumps(value, separators=(",", ":")))

    @classmethod
    def read(cls, text: str) -> Any:
        value = json.loads(text or "{}")
        if not isinstance(value, cls.kind):
            raise TypeError(value)
        return value

    def bind_processor(self, dialect: Any) -> Convert:  # noqa: ARG002
        return self.write


class JsonObject(Json):
    """A JSON object."""

    cache_ok = True
    kind = dict

    def unreadable(self, stored: Any) -> Any:
        return {"unreadable": stored_text(stored)}


class JsonList(Json):
    """A JSON list."""

    cache_ok = True
    kind = list

    def unreadable(self, stored: Any) -> Any:  # noqa: ARG002
        return []


class EventJson(Parsed):
    """An event as JSON; a note of it if it cannot be read."""

    cache_ok = True
    write = staticmethod(lambda event: json.dumps(ev.to_json(event), separators=(",", ":")))

    @staticmethod
    def read(text: str) -> ev.Event:
        event = ev.from_json(json.loads(text))
        if type(event.step) is not int or not all(
            isinstance(getattr(event, name), str) for name in _texts(ev.kind_of(event))
        ):
            raise TypeError(text)
        return event

    def unreadable(self, stored: Any) -> Any:
        text = f"an event that cannot be read: {stored_text(stored)}"
        return ev.NoteWritten(step=0, text=text, severity="warning")


@cache
def _texts(kind: str) -> tuple[str, ...]:
    """The fields of an event that are texts."""
    hints = get_type_hints(ev.EVENT_TYPES[kind])
    return tuple(name for name, hint in hints.items() if hint is str)


class Numbers(Parsed):
    """Numbers by name as JSON; those that are not finite are texts in it."""

    cache_ok = True
    write, read = staticmethod(dumps), staticmethod(loads)

    def unreadable(self, stored: Any) -> Any:
        return {"unreadable": UnreadableFloat.of(stored_text(stored))}


class Spans(Parsed):
    """The spans of a completion as JSON; an empty text without any."""

    cache_ok = True
    write, read = staticmethod(spans_json), staticmethod(read_spans)

    def unreadable(self, stored: Any) -> Any:  # noqa: ARG002
        return ()
