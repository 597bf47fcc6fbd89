"""How values are read from rows: each field of a value is the column of its name.

A column that is stored escaped, NULL for NaN, 0 or 1, or as JSON is given back as the field's type
says.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, Generic, TypeVar, get_args, get_origin

from experiments.db.numbers import loads, number
from experiments.db.texts import Escaped, unescape

V = TypeVar("V")
USUAL = {"key": "id", "run": "run_id", "group": "group_id", "index": "idx"}


class Shape(Generic[V]):
    """The values of one type, read from the rows of one table.

    `names` gives the column of a field that is called otherwise, "" for a field that has none.
    """

    def __init__(self, view: type[V], row: Any, **names: str) -> None:
        self.view, self.row = view, row
        kinds: dict[str, Any] = row.__annotations__
        names = USUAL | names
        found = {field: names.get(field.name, field.name) for field in fields(view)}  # type: ignore[arg-type]
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

    def read(self, rows: Iterable[Sequence[Any]], *more: str) -> Iterator[dict[str, Any]]:
        """Each row's values by the names of the fields, and of `more` columns that follow."""
        names = (*self.columns, *more)
        for row in rows:
            values = dict(zip(names, row, strict=False))
            for name in self._texts:
                if "\\" in values[name]:
                    values[name] = unescape(values[name])
            for name, convert in self._others:
                values[name] = convert(values[name])
            if self._marked and (nan := values.pop("nonfinite")):
                values.update(dict.fromkeys(nan.split(","), math.nan))
            yield values


def _conversion(wanted: Any, stored: Any) -> Callable[[Any], Any] | None:
    """What makes a stored value one of the wanted type; None where it is one already."""
    if wanted is float and stored == float | None:
        return number
    if wanted is bool:
        return bool
    if stored is str and get_origin(wanted) is Mapping:
        return loads if get_args(wanted)[1] is float else json.loads
    return None
