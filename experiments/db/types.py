"""Column types: what a row holds in the values that Python uses.

A store is input: a value that its column cannot hold, or that cannot be read, becomes a
value of the column's type that shows as what is stored. The reader collects what it met, and says
whose it is.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from dataclasses import fields as fields_of
from datetime import datetime
from functools import cache
from typing import Any, ClassVar, get_args, get_type_hints

from sqlalchemy import REAL, TEXT, Integer

from grpo_engine import events as ev
from grpo_tui.experiments.db.texts import escape, unescape, visible
from grpo_tui.experiments.values import Status, UnreadableFloat, UnreadableInt

Convert = Callable[[Any], Any]
MAX_CHARS = 80  # characters of a stored value
YEAR_10000 = 253_402_300_800  # in seconds
compact = json.JSONEncoder(separators=(",", ":")).encode
STATUSES = frozenset(get_args(Status))


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
    """What a row holds as printable text, bytes as SQL writes them; a long one is cut."""
    text = visible(f"x'{stored.hex()}'" if isinstance(stored, bytes) else str(stored))
    return text if len(text) <= MAX_CHARS else f"{text[: MAX_CHARS - 1]}…"


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
    """Reads a column; subclasses say what is readable, and what is read for other values."""

    write: Convert | None = None

    def __init__(self, column: str = "", **options: Any) -> None:  # SQLAlchemy copies by these
        super().__init__(**options)
        self.column = column  # table.column

    def convert(self, stored: Any) -> Any:
        raise NotImplementedError

    def replacement(self, stored: Any) -> Any:
        raise NotImplementedError

    def bind_processor(self, dialect: Any) -> Convert | None:  # noqa: ARG002
        return self.write

    def result_processor(self, dialect: Any, coltype: Any) -> Convert:  # noqa: ARG002
        return self.convert

    def damaged(self, stored: Any) -> Any:
        """Report a value that cannot be read, and return what stands for it."""
        if (collected := _COLLECTED.get()) is not None:
            collected.add(Damage(self.column, stored))
        return self.replacement(stored)


class WholeNumber(Readable, Integer):
    def convert(self, stored: Any) -> Any:
        return stored if stored is None or type(stored) is int else self.damaged(stored)

    def replacement(self, stored: Any) -> Any:
        return UnreadableInt.of(stored_text(stored))


class Flag(WholeNumber):
    """Yes or no."""

    write = staticmethod(lambda value: None if value is None else int(value))

    def convert(self, stored: Any) -> Any:
        if stored in (0, 1):
            return bool(stored)
        return None if stored is None else self.damaged(stored)


class Number(Readable, REAL[float]):
    """A number, or NULL."""

    null: ClassVar[float | None] = None

    def convert(self, stored: Any) -> Any:
        if type(stored) is float:
            return stored
        if stored is None:
            return self.null
        return float(stored) if type(stored) is int else self.damaged(stored)

    def replacement(self, stored: Any) -> Any:
        return UnreadableFloat.of(stored_text(stored))


class Timestamp(Number):
    """Seconds since 1970."""

    def convert(self, stored: Any) -> Any:
        at = super().convert(stored)
        return at if at is None or 0 <= at < YEAR_10000 else self.damaged(stored)


class Real(Number):
    """A number that is always there: NULL is NaN."""

    null = math.nan
    write = staticmethod(lambda value: None if value is None or math.isnan(value) else float(value))


class Text(Readable, TEXT):
    """Text, with escapes for what SQLite cannot hold."""

    write: Convert = staticmethod(escape)
    read: Convert = staticmethod(unescape)

    def convert(self, stored: Any) -> Any:
        if type(stored) is not str:
            return None if stored is None else self.damaged(stored)
        try:
            return self.read(stored)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return self.damaged(stored)

    def replacement(self, stored: Any) -> Any:
        return stored_text(stored)


class Time(Text):
    """A time as ISO text, UTC."""

    @staticmethod
    def read(text: str) -> str:
        datetime.fromisoformat(text)
        return text


class StatusText(Text):
    """The status of a run."""

    @staticmethod
    def read(text: str) -> str:
        if text not in STATUSES:
            raise ValueError(text)
        return text


class Json(Text):
    """Any JSON, in ASCII and in its own order; an empty text is an empty object."""

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
    """A JSON object."""

    cls = dict

    def replacement(self, stored: Any) -> Any:
        return {"unreadable": stored_text(stored)}


class JsonList(Json):
    """A JSON list."""

    cls = list

    def replacement(self, stored: Any) -> Any:  # noqa: ARG002
        return []


class EventJson(Text):
    """An event as JSON; a note of it if it cannot be read."""

    write = staticmethod(lambda event: compact(ev.to_json(event)))

    @staticmethod
    def read(text: str) -> ev.Event:
        event = ev.from_json(json.loads(text))
        if type(event.step) is not int or not all(
            isinstance(getattr(event, name), str) for name in _texts(ev.kind_of(event))
        ):
            raise TypeError(text)
        return event

    def replacement(self, stored: Any) -> Any:
        text = f"an event that cannot be read: {stored_text(stored)}"
        return ev.NoteWritten(step=0, text=text, severity="warning")


@cache
def _texts(kind: str) -> tuple[str, ...]:
    """The fields of an event that are texts."""
    hints = get_type_hints(ev.EVENT_TYPES[kind])
    return tuple(name for name, hint in hints.items() if hint is str)


class Numbers(Text):
    """Numbers by name as JSON; those that are not finite are texts in it."""

    @staticmethod
    def write(values: Mapping[str, Any]) -> str:
        return compact(ev.encode(values))

    @staticmethod
    def read(text: str) -> dict[str, float]:
        return {name: float(value) for name, value in json.loads(text).items()}

    def replacement(self, stored: Any) -> Any:
        return {"unreadable": UnreadableFloat.of(stored_text(stored))}


class Spans(Text):
    """The spans of a completion as JSON without defaults; an empty text without any."""

    @staticmethod
    def write(spans: Sequence[ev.Span]) -> str:
        if not spans:
            return ""
        defaults = {field.name: field.default for field in fields_of(ev.Span)} | {"info": {}}
        return json.dumps([
            {name: value for name, value in asdict(span).items() if value != defaults[name]}
            for span in spans
        ])  # fmt: skip

    @staticmethod
    def read(text: str) -> tuple[ev.Span, ...]:
        return tuple(ev.Span(**span) for span in json.loads(text)) if text else ()

    def replacement(self, stored: Any) -> Any:  # noqa: ARG002
        return ()
