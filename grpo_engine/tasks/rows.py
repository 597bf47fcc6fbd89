"""Reads rows of a data file with their line numbers: JSONL, JSON, CSV, TSV and Parquet."""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_engine.errors import DataError, MissingPackageError

SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet")
# A CSV field may be a whole document.
LONGEST_FIELD = 1 << 26


@dataclass(frozen=True, slots=True)
class Row:
    """One row: its columns, and its place in the file."""

    columns: Mapping[str, Any]
    where: str


def read_rows(path: Path) -> list[Row]:
    """Read every row of the file; the first bad one raises an error with file, line and remedy."""
    readers = {
        ".jsonl": _jsonl,
        ".json": _json,
        ".csv": _csv,
        ".tsv": _csv,
        ".parquet": _parquet,
    }
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise DataError(
            f"{path}: a data file ends in {', '.join(SUFFIXES)}, not {path.suffix or 'nothing'!r}"
        )
    try:
        rows = list(reader(path))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    if not rows:
        raise DataError(f"{path} has no rows; check that it was written to its end")
    return rows


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    with path.open("rb") as file:
        for number, data in enumerate(file, 1):
            try:
                yield number, data.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{path}:{number}: byte {error.start} ({data[error.start]:#04x}) is not UTF-8; "
                    "save the file as UTF-8"
                ) from error


def _jsonl(path: Path) -> Iterator[Row]:
    for number, line in _lines(path):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            said = str(error)
            if isinstance(error, json.JSONDecodeError):
                said = f"{error.msg} at column {error.colno}"
            shown = line.strip()[:60]
            hint = ""
            if number == 1 and line.lstrip().startswith("["):
                hint = " (if it is one list, name the file .json)"
            raise DataError(
                f"{path}:{number}: not JSON: {said}: {shown!r}; write one JSON object per line, "
                f"or delete the line{hint}"
            ) from error
        if not isinstance(value, dict):
            raise DataError(
                f"{path}:{number}: a row is a JSON object like "
                f'{{"prompt": …}}, not {type(value).__name__}'
            )
        yield Row(value, f"{path}:{number}")


def _json(path: Path) -> Iterator[Row]:
    text = "".join(line for _, line in _lines(path))
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path}:{error.lineno}: not JSON: {error.msg} at column {error.colno}; if it has one "
            "object per line, name the file .jsonl"
        ) from error
    if isinstance(value, dict):
        lists = [inner for inner in value.values() if isinstance(inner, list)]
        value = lists[0] if len(lists) == 1 else value
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise DataError(f"{path}: a .json data file is one list of objects")
    for number, row in enumerate(value, 1):
        yield Row(row, f"{path}: row {number}")


def _csv(path: Path) -> Iterator[Row]:
    csv.field_size_limit(LONGEST_FIELD)
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    reader = csv.reader((line for _, line in _lines(path)), delimiter=delimiter, strict=True)
    names: list[str] = []
    try:
        for cells in reader:
            where = f"{path}:{reader.line_num}"
            if not names:
                names = _header(cells, where)
            elif cells:
                if len(cells) != len(names):
                    raise DataError(
                        f"{where}: {len(cells)} fields where the header has {len(names)}; quote "
                        "fields that contain the delimiter or a line break"
                    )
                yield Row(dict(zip(names, cells, strict=True)), where)
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: not CSV: {error}; check its quotes") from error


def _header(cells: Sequence[str], where: str) -> list[str]:
    names = [cell.strip() for cell in cells]
    for name in names:
        if names.count(name) > 1 or not name:
            raise DataError(f"{where}: the header has {name!r} more than once or empty; rename it")
    return names


def _parquet(path: Path) -> Iterator[Row]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise MissingPackageError(
            f"{path}: Parquet files need the package pyarrow; `pip install 'grpo-tui[parquet]'`, "
            "or convert the file to JSONL"
        ) from error
    try:
        table = parquet.read_table(path)
    except (ArrowException, OSError) as error:
        raise DataError(f"{path} is not a readable Parquet file: {error}") from error
    for number, row in enumerate(table.to_pylist(), 1):
        yield Row(row, f"{path}: row {number}")


def not_json(value: Any) -> str:
    """The type of the first non-JSON value inside the value; empty if it is all JSON."""
    if value is None or isinstance(value, str | bool | int | float):
        return ""
    if isinstance(value, Mapping):
        if any(not isinstance(key, str) for key in value):
            return "a dictionary whose keys are not text"
        return next(filter(None, map(not_json, value.values())), "")
    if isinstance(value, list | tuple):
        return next(filter(None, map(not_json, value)), "")
    return type(value).__name__
