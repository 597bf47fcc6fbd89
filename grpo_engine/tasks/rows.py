"""Reads rows of a data file with their line numbers: JSONL, JSON, CSV, TSV and Parquet."""

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from grpo_engine.config.safe_yaml import once
from grpo_engine.errors import DataError, MissingPackageError

SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet")
# A CSV field may be a whole document.
LONGEST_FIELD = 1 << 26

T = TypeVar("T")
R = TypeVar("R")


class BadRows:
    """Collects the rows that cannot be used: `task.bad_rows` refuses the data or skips them."""

    SHOWN = 3

    def __init__(self, *, skip: bool) -> None:
        self.skip = skip
        self.count = 0
        self._shown: list[DataError] = []

    def add(self, error: DataError) -> None:
        """Count a row; the error says where it is and what is wrong."""
        self.count += 1
        if len(self._shown) < self.SHOWN:
            self._shown.append(error)

    def good(self, items: Iterable[T], make: Callable[[int, T], R]) -> list[R]:
        """What `make` returns for each item and its index; counts those that it refuses."""
        made = []
        for index, item in enumerate(items):
            try:
                made.append(make(index, item))
            except DataError as error:
                self.add(error)
        return made

    def note(self, good: int) -> str:
        """Say which rows are skipped, empty if none is; raise if they may not be."""
        if not self.count:
            return ""
        total = good + self.count
        said = "; ".join(dict.fromkeys(map(str, self._shown)))
        settings = dict.fromkeys(name for error in self._shown for name in error.settings)
        if not good:
            said = said if total == 1 else f"none of {total} rows can be used: {said}"
            raise DataError(said, *settings)
        if more := self.count - len(self._shown):
            said += f"; and {more} more"
        if self.skip:
            return f"{self.count} of {total} rows are skipped: {said}"
        if total > 1:
            said = f"{self.count} of {total} rows cannot be used: {said}"
        raise DataError(
            f"{said}. Correct or remove them, or set task.bad_rows to skip",
            *settings, "task.bad_rows",
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One row: its columns, and its place in the file."""

    columns: Mapping[str, Any]
    where: str


def read_rows(path: Path, bad: BadRows) -> list[Row]:
    """Read every row of the file, and collect lines that are none.

    A file that cannot be read beyond some place raises an error with that place and a remedy.
    """
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
        rows = list(reader(path, bad))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    if not rows:
        bad.note(0)
        raise DataError(f"{path} has no rows; check that it was written to its end")
    return rows


def _decoded(path: Path, number: int, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}:{number}: byte {error.start} ({data[error.start]:#04x}) is not UTF-8; "
            "save the file as UTF-8"
        ) from error


def _lines(path: Path) -> Iterator[str]:
    with path.open("rb") as file:
        for number, data in enumerate(file, 1):
            yield _decoded(path, number, data)


def _jsonl(path: Path, bad: BadRows) -> Iterator[Row]:
    with path.open("rb") as file:
        for number, data in enumerate(file, 1):
            if not data.strip():
                continue
            try:
                yield _json_row(path, number, _decoded(path, number, data))
            except DataError as error:
                bad.add(error)


def _json_row(path: Path, number: int, line: str) -> Row:
    try:
        value = json.loads(line, object_pairs_hook=once)
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
    return Row(value, f"{path}:{number}")


def _json(path: Path, bad: BadRows) -> Iterator[Row]:
    text = "".join(_lines(path))
    try:
        value = json.loads(text, object_pairs_hook=once)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path}:{error.lineno}: not JSON: {error.msg} at column {error.colno}; if it has one "
            "object per line, name the file .jsonl"
        ) from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read: {error}; correct it") from error
    if isinstance(value, dict):
        lists = [inner for inner in value.values() if isinstance(inner, list)]
        value = lists[0] if len(lists) == 1 else value
    if not isinstance(value, list):
        raise DataError(f"{path}: a .json data file is one list of objects")
    for number, row in enumerate(value, 1):
        where = f"{path}: row {number}"
        if isinstance(row, dict):
            yield Row(row, where)
        else:
            bad.add(DataError(f"{where}: a row is an object, not {type(row).__name__}"))


def _csv(path: Path, bad: BadRows) -> Iterator[Row]:
    csv.field_size_limit(LONGEST_FIELD)
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    reader = csv.reader(_lines(path), delimiter=delimiter, strict=True)
    names: list[str] = []
    try:
        for cells in reader:
            where = f"{path}:{reader.line_num}"
            if not names:
                names = _header(cells, where)
            elif len(cells) == len(names):
                yield Row(dict(zip(names, cells, strict=True)), where)
            elif cells:
                bad.add(
                    DataError(
                        f"{where}: {len(cells)} fields where the header has {len(names)}; quote "
                        "fields that contain the delimiter or a line break"
                    )
                )
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: not CSV: {error}; check its quotes") from error


def _header(cells: Sequence[str], where: str) -> list[str]:
    names = [cell.strip() for cell in cells]
    for name in names:
        if names.count(name) > 1 or not name:
            raise DataError(f"{where}: the header has {name!r} more than once or empty; rename it")
    return names


def _parquet(path: Path, _bad: BadRows) -> Iterator[Row]:
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
