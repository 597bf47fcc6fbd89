"""Column types: they convert stored values to Python's and back.

A store is input. A value that does not fit its column becomes a value of the column's type that
prints as what is stored. The reader collects such damage and reports the runs that have it.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, ClassVar, get_args, get_type_hints

from sqlalchemy import REAL, TEXT, Column, Integer, event

from grpo_engine import events as ev
from grpo_tui.experiments.db.texts import escape, unescape, visible
from grpo_tui.experiments.values import Status, UnreadableFloat, UnreadableInt

Convert = Callable[[Any], Any]
ABSENT = "absent"  # stored in place of a number, where NULL means NaN
MAX_CHARS = 80  # characters of a stored value
YEAR_10000 = 253_402_300_800  # seconds since 1970
compact = json.JSONEncoder(separators=(",", ":")).encode
UNREADABLE = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)


@dataclass(frozen=True, slots=True)
class Damage:
    """A stored value that its column's type cannot read."""

    column: str  # table.column
    stored: Any

    def __str__(self) -> str:
        return f"{self.column} is {stored_text(self.stored)}"


_COLLECTED: ContextVar[set[Damage] | None] = ContextVar("damage", default=None)


@contextmanager
def collecting(damage: set[Damage]) -> Iterator[None]:
    """Add damaged values to a set while rows are read."""
    token = _COLLECTED.set(damage)
    try:
        yield
    finally:
        _COLLECTED.reset(token)


def stored_text(stored: Any) -> str:
    """A stored value as printable text of limited length; bytes as in SQL."""
    text = visible(f"x'{stored.hex()}'" if isinstance(stored, bytes) else str(stored))
    return text if len(text) <= MAX_CHARS else f"{text[: MAX_CHARS - 1]}…"


def any_text(data: bytes) -> str | bytes:
    """Decode a text of the file; bytes that are not UTF-8 stay."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


class Readable:
    """Reads and writes the values of a column."""

    stored: ClassVar[tuple[type, ...]] = (str,)
    null: ClassVar[Any] = None  # the value of NULL
    read: Convert = str  # raises one of UNREADABLE
    write: Convert | None = None
    replacement: Convert = str  # from the text of a value that cannot be read

    def __init__(self, column: str = "", **options: Any) -> None:  # SQLAlchemy copies by these
        super().__init__(**options)
        self.column = column  # table.column, known once the column belongs to a table

    def bind_processor(self, _dialect: Any) -> Convert | None:
        return self.write

    def result_processor(self, _dialect: Any, _coltype: Any) -> Convert:
        return self.convert

    def convert(self, stored: Any) -> Any:
        if stored is None:
            return self.null
        if type(stored) in self.stored:
            try:
                return self.read(stored)
            except UNREADABLE:
                pass
        if (collected := _COLLECTED.get()) is not None:
            collected.add(Damage(self.column, stored))
        return self.replacement(stored_text(stored))


@event.listens_for(Column, "after_parent_attach")
def _name_type(column: Column[Any], table: Any) -> None:
    """Tell the type of a column that is added to a table its name, for reports of damage."""
    if isinstance(column.type, Readable):
        column.type.column = f"{table.name}.{column.name}"


class StoredInt(Readable, Integer):
    stored = (int,)
    read: Convert = int
    replacement: Convert = UnreadableInt.of


class Count(StoredInt):
    """A count; one that nobody knows is stored as -1, since older files allow no NULL there."""

    write = staticmethod(lambda count: -1 if count is None else count)
    read = staticmethod(lambda count: None if count < 0 else count)


class Flag(StoredInt):
    """A boolean."""

    read = {0: False, 1: True}.__getitem__
    write = staticmethod(lambda value: None if value is None else int(value))


class Number(Readable, REAL[float]):
    """A number, or NULL."""

    stored: ClassVar[tuple[type, ...]] = (float, int)
    read: Convert = float
    replacement = UnreadableFloat.of


class Timestamp(Number):
    """Seconds since 1970."""

    @staticmethod
    def read(number: float) -> float:
        if not 0 <= number < YEAR_10000:
            raise ValueError(number)
        return float(number)


class NumberOrNan(Number):
    """A number that is never missing; NaN is stored as NULL."""

    null = math.nan
    write: Convert = staticmethod(
        lambda value: None if value is None or math.isnan(value) else float(value)
    )


class NumberOrAbsent(NumberOrNan):
    """A number that a trainer may not have recorded; NULL was NaN before that was possible."""

    stored: ClassVar[tuple[type, ...]] = (float, int, str)
    write: Convert = staticmethod(
        lambda value: ABSENT if value is None else NumberOrNan.write(value)
    )
    read: Convert = staticmethod(lambda stored: None if stored == ABSENT else float(stored))


class EscapedText(Readable, TEXT):
    """Text, with escapes for what SQLite cannot hold."""

    write: Convert = staticmethod(escape)
    read: Convert = staticmethod(unescape)


class Time(EscapedText):
    """A time as ISO text, UTC."""

    @staticmethod
    def read(text: str) -> str:
        datetime.fromisoformat(text)
        return text


class StatusText(EscapedText):
    """The status of a run."""

    read = {status: status for status in get_args(Status)}.__getitem__


class Json(EscapedText):
    """ASCII JSON in the order of its keys; an empty text is an empty object."""

    cls: ClassVar[type] = object
    should_evaluate_none = True
    write = staticmethod(compact)

    @classmethod
    def read(cls, text: str) -> Any:
        value = json.loads(text or "{}")
        if not isinstance(value, cls.cls):
            raise TypeError(value)
        return value


class JsonObject(Json):
    cls = dict
    replacement = staticmethod(lambda text: {"unreadable": text})


class JsonList(Json):
    cls = list
    replacement: Convert = staticmethod(lambda _: [])


class EventJson(EscapedText):
    """An event as JSON; one that cannot be read becomes a note."""

    write = staticmethod(lambda event: compact(ev.to_json(event)))

    @staticmethod
    def read(text: str) -> ev.Event:
        event = ev.from_json(json.loads(text))
        if type(event.step) is not int or not all(
            isinstance(getattr(event, name), str) for name in _texts(ev.kind_of(event))
        ):
            raise TypeError(text)
        return event

    @staticmethod
    def replacement(text: str) -> ev.Event:
        return ev.warning(0, f"an event that cannot be read: {text}")


@cache
def _texts(kind: str) -> tuple[str, ...]:
    """The text fields of a kind of event."""
    hints = get_type_hints(ev.EVENT_TYPES[kind])
    return tuple(name for name, hint in hints.items() if hint is str)


class Numbers(EscapedText):
    """Numbers by name as JSON, with texts for those that are not finite."""

    @staticmethod
    def write(values: Mapping[str, Any]) -> str:
        return compact(ev.encode(values))

    @staticmethod
    def read(text: str) -> dict[str, float]:
        return {name: float(value) for name, value in json.loads(text).items()}

    replacement = staticmethod(lambda text: {"unreadable": UnreadableFloat.of(text)})


class Spans(EscapedText):
    """The spans of a completion as JSON; an empty text for none."""

    write = staticmethod(lambda spans: compact(ev.encode(spans)) if spans else "")
    read = staticmethod(
        lambda text: ev.decode(tuple[ev.Span, ...], json.loads(text)) if text else ()
    )
    replacement = staticmethod(lambda _: ())
