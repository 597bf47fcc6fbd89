"""Convert rows to values: each field of a value is read from the column of its name.

A text is unescaped; NULL for NaN, 0 or 1, and JSON are converted to the field's type.
"""

import json
import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, fields
from itertools import repeat
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_args, get_origin

from grpo_engine.events import Span
from grpo_tui.experiments.db.numbers import loads, number
from grpo_tui.experiments.db.texts import unescape
from grpo_tui.experiments.errors import StoreUnusableError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

V = TypeVar("V", bound="DataclassInstance")
USUAL = {"key": "id", "run": "run_id", "group": "group_id", "index": "idx"}


class Columns(dict[str, Sequence[Any]]):
    """Columns of rows by the fields that are read from them."""

    def __missing__(self, field: str) -> Sequence[Any]:
        raise StoreUnusableError(f"the store has no column for {field}: restore a backup of it")


class Shape(Generic[V]):
    """Reads values of one type from the rows of a table.

    `names` maps a field to a column of another name, or to "" if it has none.
    """

    def __init__(self, view: type[V], table: str, **names: str) -> None:
        self.view, self.table = view, table
        names = USUAL | names
        found = {field.name: names.get(field.name, field.name) for field in fields(view)}
        # `nonfinite` names the columns where NULL means NaN, unless it is a field itself
        self._marked = "nonfinite" not in found
        self._columns = {"nonfinite": "nonfinite"} | found
        self._conversions = {field.name: _conversion(field.type) for field in fields(view)}

    def columns(self, present: Collection[str]) -> dict[str, str]:
        """Return the columns among those `present` in the table, by field name."""
        return {field: name for field, name in self._columns.items() if name in present}

    def read(
        self, rows: Sequence[Sequence[Any]], names: Sequence[str], more: Sequence[str] = ()
    ) -> Columns:
        """Return the rows' columns by the names of fields; columns named in `more` follow."""
        of_rows = zip(*rows, strict=True) if rows else repeat(())
        columns = Columns(zip((*names, *more), of_rows, strict=False))
        for name in names:
            convert = self._conversions.get(name)
            if convert is unescape:  # few texts need it
                columns[name] = [unescape(one) if "\\" in one else one for one in columns[name]]
            elif convert:
                columns[name] = list(map(convert, columns[name]))
        if self._marked:
            for place, nan in enumerate(columns.pop("nonfinite", ())):
                for name in nan.split(",") if nan else ():
                    column = columns[name] = list(columns[name])
                    column[place] = math.nan
        return columns

    def make(self, columns: Mapping[str, Sequence[Any]]) -> list[V]:
        """Build values from columns; a field without a column gets its default.

        Fields are set a column at a time: the constructor of a frozen dataclass takes three times
        as long.
        """
        count = len(next(iter(columns.values())))
        made = list(map(object.__new__, repeat(self.view, count)))
        for field in fields(self.view):
            needed = field.default is MISSING or field.name in columns
            column = columns[field.name] if needed else repeat(field.default)
            deque(map(getattr(self.view, field.name).__set__, made, column), maxlen=0)
        return made


def spans(text: str) -> tuple[Span, ...]:
    return tuple(Span(**one) for one in json.loads(text)) if text else ()


CONVERSIONS: Mapping[Any, Callable[[Any], Any]] = {
    str: unescape, float: number, bool: bool, tuple[Span, ...]: spans
}  # fmt: skip


def _conversion(wanted: Any) -> Callable[[Any], Any] | None:
    """Return the conversion of a stored value to the field's type; None if it is of that type."""
    if get_origin(wanted) is Mapping:
        return loads if get_args(wanted)[1] is float else json.loads
    return CONVERSIONS.get(wanted)
