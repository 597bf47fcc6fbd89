"""CSV that spreadsheets and pandas both read: UTF-8, RFC 4180, full precision, guarded text."""

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any

from experiments.db.texts import escape, guard, unescape, unguard

# DEL and C1 controls, line separators, bidirectional marks, lone surrogates
_UNSEEN = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")

Rows = Iterable[Mapping[str, Any]]


def write_csv(out: IO[str], header: Sequence[str], rows: Rows, *, raw: bool = False) -> int:
    """Write one header row and the rows, and count them; `raw` leaves texts unguarded."""
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow([cell(name, raw=raw) for name in header])
    count = 0
    for row in rows:
        writer.writerow([cell(row.get(name), raw=raw) for name in header])
        count += 1
    return count


def cell(value: Any, *, raw: bool = False) -> str:
    """A value as the text of a cell; nothing for None."""
    if value is None:
        return ""
    if isinstance(value, str):
        return escape(value) if raw else guard(escape(value))
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return number_text(value)
    if isinstance(value, Mapping | list | tuple):
        return cell(json.dumps(plain(value), ensure_ascii=False), raw=raw)
    return str(value)


def number_text(value: float) -> str:
    """The shortest text that reads back as the same float; NaN, Infinity, -Infinity."""
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def read_csv(source: IO[str], *, raw: bool = False) -> Iterator[dict[str, str]]:
    """Read what `write_csv` wrote: one guard is stripped from each cell, escapes are undone."""
    csv.field_size_limit(2**31 - 1)
    reader = csv.reader(source)
    header = [_text(name, raw) for name in next(reader, [])]
    for row in reader:
        yield {name: _text(value, raw) for name, value in zip(header, row, strict=True)}


def _text(value: str, raw: bool) -> str:
    return unescape(value if raw else unguard(value))


def plain(value: Any) -> Any:
    """JSON values; numbers that JSON cannot hold become their names."""
    if isinstance(value, float) and not math.isfinite(value):
        return number_text(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | frozenset | set):
        return [plain(item) for item in value]
    return value


def json_text(value: Any, *, indent: int | None = None) -> str:
    """JSON for people and pipes: text as it is, but for what a terminal obeys or cannot show."""
    try:
        text = json.dumps(value, ensure_ascii=False, indent=indent, allow_nan=False, default=plain)
    except ValueError:  # a NaN or an infinity somewhere
        text = json.dumps(plain(value), ensure_ascii=False, indent=indent, allow_nan=False)
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
