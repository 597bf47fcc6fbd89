"""Reads rows of a data file with their line numbers: JSONL, JSON, CSV, TSV and Parquet."""

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, TypeVar

from grpo_engine.config.safe_json import once
from grpo_engine.config.settings import TaskConfig
from grpo_engine.errors import DataError, MissingPackageError

LONGEST_FIELD = 1 << 26  # A field of a CSV file may be a document.
# Names of splits that are held out.
HELD_OUT: Final = ("valid", "validation", "test", "dev", "eval")

T = TypeVar("T")
R = TypeVar("R")


class BadRows:
    """Collects the rows that cannot be used: `task.bad_rows` refuses the data or skips them."""

    LISTED = 3

    def __init__(self, config: TaskConfig) -> None:
        self.skip = config.bad_rows == "skip"
        self.count = 0
        self._first: list[DataError] = []

    def good(self, items: Iterable[T], make: Callable[[int, T], R]) -> list[R]:
        """What `make` returns for each item and its index; counts those that it refuses."""
        results = []
        for index, item in enumerate(items):
            try:
                results.append(make(index, item))
            except DataError as error:
                self.count += 1
                if len(self._first) < self.LISTED:
                    self._first.append(error)
        return results

    def note(self, good: int) -> str:
        """Say which rows are skipped, empty if none is; raise if they may not be."""
        if not self.count:
            return ""
        total = good + self.count
        reasons = "; ".join(dict.fromkeys(map(str, self._first)))
        settings = dict.fromkeys(name for error in self._first for name in error.settings)
        if not good:
            rows = "" if total == 1 else f"none of {total} rows can be used: "
            raise DataError(f"{rows}{self._first[0]}", *settings)
        if more := self.count - len(self._first):
            reasons += f"; and {more} more"
        if self.skip:
            return f"{self.count} of {total} rows are skipped: {reasons}"
        if total > 1:
            reasons = f"{self.count} of {total} rows cannot be used: {reasons}"
        raise DataError(
            f"{reasons}. Correct or remove them, or set task.bad_rows to skip",
            *settings,
            "task.bad_rows",
        )


@dataclass(frozen=True, slots=True)
class DataRow:
    """The columns of a row, and its location in the file."""

    columns: Mapping[str, Any]
    location: str


def read_rows(path: Path, bad: BadRows, count: int | None = None) -> list[DataRow]:
    """Read every row of the file, or the first ones, and collect lines that are none.

    A file that cannot be read beyond some place raises an error with that place and a remedy.
    """
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(
            f"{path}: a data file ends in {', '.join(SUFFIXES)}, not {path.suffix or 'nothing'!r}"
        )
    try:
        rows = bad.good(islice(reader(path), count), _row)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    if not rows:
        bad.note(0)
        raise DataError(f"{path} has no rows; check that it was written to its end")
    return rows


def _row(_: int, item: tuple[str, Any]) -> DataRow:
    location, value = item
    if isinstance(value, DataError):
        raise value
    if not isinstance(value, dict):
        raise DataError(
            f'{location}: a row is an object like {{"prompt": …}}, not {type(value).__name__}'
        )
    return DataRow(value, location)


# A reader yields the location of each row, and the row or an error.
Items = Iterator[tuple[str, Any]]


def _lines(path: Path) -> Iterator[str]:
    with path.open("rb") as file:
        for number, data in enumerate(file, 1):
            try:
                yield data.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{path}:{number}: byte {error.start} ({data[error.start]:#04x}) is not UTF-8; "
                    "save the file as UTF-8"
                ) from error


def _jsonl(path: Path) -> Items:
    for number, line in enumerate(_lines(path), 1):
        location = f"{path}:{number}"
        if not line.strip():
            continue
        try:
            value = json.loads(line, object_pairs_hook=once)
        except (ValueError, RecursionError) as error:
            reason = str(error)
            if isinstance(error, json.JSONDecodeError):
                reason = f"{error.msg} at column {error.colno}"
            hint = " (if it is one list, name the file .json)" if line.startswith("[") else ""
            value = DataError(
                f"{location}: not JSON: {reason}: {line.strip()[:60]!r}; write one JSON object per "
                f"line, or delete the line{hint}"
            )
        yield location, value


def _json(path: Path) -> Items:
    try:
        value = json.loads("".join(_lines(path)), object_pairs_hook=once)
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
    return _numbered(path, value)


def _numbered(path: Path, rows: Iterable[Any]) -> Items:
    for number, row in enumerate(rows, 1):
        yield f"{path}: row {number}", row


def _csv(path: Path, delimiter: str = ",") -> Items:
    csv.field_size_limit(LONGEST_FIELD)
    reader = csv.reader(_lines(path), delimiter=delimiter, strict=True)
    try:
        names = _header(next(filter(None, reader), []), f"{path}:{reader.line_num}")
        for cells in reader:
            location = f"{path}:{reader.line_num}"
            if len(cells) == len(names):
                yield location, dict(zip(names, cells, strict=True))
            elif cells:
                yield (
                    location,
                    DataError(
                        f"{location}: {len(cells)} fields where the header has {len(names)}; quote "
                        "fields that contain the delimiter or a line break"
                    ),
                )
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: not CSV: {error}; check its quotes") from error


def _header(cells: Sequence[str], location: str) -> list[str]:
    names = [cell.strip() for cell in cells]
    for name in names:
        if names.count(name) > 1 or not name:
            raise DataError(
                f"{location}: the header has {name!r} more than once or empty; rename it"
            )
    return names


def _parquet(path: Path) -> Items:
    try:
        import pyarrow
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise MissingPackageError(
            f"{path}: Parquet files need the package pyarrow; `pip install 'grpo-tui[parquet]'`, "
            "or convert the file to JSONL"
        ) from error
    try:
        with parquet.ParquetFile(path) as file:
            batches = map(pyarrow.RecordBatch.to_pylist, file.iter_batches())
            yield from _numbered(path, chain.from_iterable(batches))
    except (ArrowException, OSError) as error:
        raise DataError(f"{path} is not a readable Parquet file: {error}") from error


READERS: Final[Mapping[str, Callable[[Path], Items]]] = {
    ".jsonl": _jsonl,
    ".json": _json,
    ".csv": _csv,
    ".tsv": partial(_csv, delimiter="\t"),
    ".parquet": _parquet,
}
SUFFIXES: Final = tuple(READERS)
