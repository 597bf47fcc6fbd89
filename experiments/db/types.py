"""Column types: what a row holds in the values that Python uses."""

import json
from collections.abc import Callable
from typing import Any

from sqlalchemy.types import Float, TypeDecorator
from sqlmodel.sql.sqltypes import AutoString

from grpo_tui.experiments.db.numbers import dumps, known, loads, number
from grpo_tui.experiments.db.spans import read_spans, spans_json
from grpo_tui.experiments.db.texts import escape, unescape

Convert = Callable[[Any], Any]


class Text(AutoString):
    """Text, with escapes for what SQLite cannot hold."""

    cache_ok = True
    # static methods instead of `process_bind_param`, which costs a call more for each value
    write: Convert = staticmethod(escape)
    read: Convert = staticmethod(lambda text: unescape(text) if "\\" in text else text)

    def bind_processor(self, dialect: Any) -> Convert:  # noqa: ARG002
        write = self.write
        return lambda value: None if value is None else write(value)

    def result_processor(self, dialect: Any, coltype: Any) -> Convert:  # noqa: ARG002
        read = self.read
        return lambda value: read(value) if isinstance(value, str) else value


class Json(Text):
    """Any JSON, in ASCII and in its own order; an empty text is an empty object."""

    cache_ok = True
    write = staticmethod(lambda value: json.dumps(value, separators=(",", ":")))
    read = staticmethod(lambda text: json.loads(text or "{}"))
    should_evaluate_none = True

    def bind_processor(self, dialect: Any) -> Convert:  # noqa: ARG002
        return self.write


class Numbers(Text):
    """Numbers by name as JSON; those that are not finite are texts in it."""

    cache_ok = True
    write, read = staticmethod(dumps), staticmethod(loads)


class Spans(Text):
    """The spans of a completion as JSON; an empty text without any."""

    cache_ok = True
    write, read = staticmethod(spans_json), staticmethod(read_spans)


class Real(TypeDecorator[float]):
    """A number that is always there: NULL is NaN."""

    impl = Float
    cache_ok = True

    def bind_processor(self, dialect: Any) -> Convert:  # noqa: ARG002
        return known

    def result_processor(self, dialect: Any, coltype: Any) -> Convert:  # noqa: ARG002
        return number
