"""Reads back what `grpo_tui.experiments.export.csv` writes."""

import csv
from collections.abc import Iterator
from typing import IO

from grpo_tui.experiments.db.texts import unescape


def read_csv(source: IO[str], *, raw: bool = False) -> Iterator[dict[str, str]]:
    """Read what `write_csv` wrote: strip one guard from each cell, undo escapes of `raw`."""
    csv.field_size_limit(2**31 - 1)
    reader = csv.reader(source)
    header = [_text(name, raw) for name in next(reader, [])]
    for row in reader:
        yield {name: _text(value, raw) for name, value in zip(header, row, strict=True)}


def _text(value: str, raw: bool) -> str:
    return unescape(value) if raw else unguard(value)


def unguard(cell: str) -> str:
    """Strip exactly the `'` that `guard` added."""
    return cell[1:] if cell.startswith("'") else cell
