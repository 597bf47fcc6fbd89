"""CSV for spreadsheets and pandas: UTF-8, RFC 4180, full precision, hostile texts made harmless."""

import csv
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any

from grpo_tui.experiments.db.texts import escape
from grpo_tui.experiments.errors import ExportError
from grpo_tui.experiments.export.json import plain, without_controls
from grpo_tui.experiments.values import Unreadable

Rows = Iterable[Mapping[str, Any]]
# Characters that make spreadsheets read a cell as a formula.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "'")
NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def header_of(rows: Rows) -> list[str]:
    """Return all column names in order of first appearance."""
    return list(dict.fromkeys(name for row in rows for name in row))


def write_csv(out: IO[str], header: Sequence[str], rows: Rows, *, raw: bool = False) -> int:
    """Write a header and the rows, and count them; `raw` leaves texts as they are.

    A row with another column raises an error, so that no value is dropped silently.
    """
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow([cell(name, raw=raw) for name in header])
    count = 0
    for row in rows:
        if extra := set(row).difference(header):
            raise ExportError(
                f"a later row has columns that the first ones lack ({', '.join(sorted(extra))}); "
                "export this run alone, or as jsonl"
            )
        writer.writerow([cell(row.get(name), raw=raw) for name in header])
        count += 1
    return count


def cell(value: Any, *, raw: bool = False) -> str:
    """Format a value as a cell; None becomes empty."""
    if value is None:
        return ""
    if isinstance(value, str | Unreadable):
        return escape(str(value)) if raw else guard(without_controls(str(value)))
    if isinstance(value, bool | Mapping | list | tuple):
        return cell(json.dumps(plain(value), ensure_ascii=False), raw=raw)
    return str(plain(value))


def guard(text: str) -> str:
    """Prefix `'` to a cell that a spreadsheet could read as a formula, but not to numbers."""
    if not text.startswith(FORMULA_STARTS) or NUMBER.fullmatch(text):
        return text
    return "'" + text
