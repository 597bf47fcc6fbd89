"""Convert rows to values: each field of a value is read from the column of its name.

A column stored escaped, as NULL for NaN, as 0 or 1, or as JSON is converted to the field's type.
"""

import json
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from itertools import repeat
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_args, get_origin

from experiments.db.numbers import loads, number
from experiments.db.texts import Escaped, unescape
from grpo_engine.events import Span

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

V = TypeVar("V", bound="DataclassInstance")
Columns = dict[str, Sequence[Any]]
USUAL = {"key": "id", "run": "run_id", "group": "group_id", "index": "idx"}


class Shape(Generic[V]):
    """Reads values of one type from the rows of one table.

    `names` maps a field to a column of another name, or to "" if it has none.
    """

    def __init__(self, view: type[V], row: Any, **names: str) -> None:
        self.view, self.row = view, row
        kinds: dict[str, Any] = row.__annotations__
        names = USUAL | names
        found = {field: names.get(field.name, field.name) for field in fields(view)}
        self.columns = {field.name: name for field, name in found.items() if name in kinds}
        self._texts = [field for field, name in self.columns.items() if kinds[name] is Escaped]
        self._others = [
            (field.name, convert)
            for field, name in found.items()
            if name in kinds and (convert := _conversion(field.type, kinds[name]))
        ]
        self._marked = "nonfinite" in kinds and "nonfinite" not in self.columns
        if self._marked:
            self.columns["nonfinite"] = "nonfinite"

    def read(self, rows: Sequence[Sequence[Any]], *more: str) -> Columns:
        """Return the rows' columns by field name; columns named in `more` follow."""
        names = (*self.columns, *more)
        of_rows = zip(*rows, strict=True) if rows else repeat(())
        columns: Columns = dict(zip(names, of_rows, strict=False))
        for name in self._texts:
            columns[name] = [unescape(one) if "\\" in one else one for one in columns[name]]
        for name, convert in self._others:
            columns[name] = list(map(convert, columns[name]))
        if self._marked:
            for place, nan in enumerate(columns.pop("nonfinite")):
                for name in nan.split(",") if nan else ():
                    column = columns[name] = list(columns[name])
                    column[place] = math.nan
        return columns

    def make(self, columns: Columns) -> list[V]:
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


def _conversion(wanted: Any, stored: Any) -> Callable[[Any], Any] | None:
    """Return the conversion from the stored type to the field's type; None if they are the same."""
    if wanted is float and stored == float | None:
        return number
    if wanted is bool:
        return bool
    if stored is str and wanted == tuple[Span, ...]:
        return spans
    if stored is str and get_origin(wanted) is Mapping:
        return loads if get_args(wanted)[1] is float else json.loads
    return None
