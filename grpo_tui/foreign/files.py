"""Reads files of other trainers, which may be damaged or hostile: bounded, and with a place in
each error.
"""

import json
import math
import re
import stat
from collections.abc import Iterator, Mapping
from itertools import count, islice
from pathlib import Path
from typing import IO, Any

from grpo_engine.config.safe_json import once
from grpo_engine.errors import quoted
from grpo_engine.frozen import frozen
from grpo_tui.experiments.errors import ImportRefusedError

MOST_FILES = 200_000
LARGEST_STEP = 10_000_000
LONGEST_LINE = 1 << 26  # bytes: a dialogue with all its tokens and their numbers
AGAIN = "correct it or take it out, and import again"


class UnfinishedError(ImportRefusedError):
    """The trainer has not written this to its end."""


@frozen
class Row:
    """An object of a file, and where it is."""

    at: str  # "FILE:LINE"
    values: Mapping[str, Any]

    def refuse(self, name: str, expected: str) -> ImportRefusedError:
        return ImportRefusedError(
            f"{self.at}: {name} must be {expected}, got {quoted(self.values.get(name))}; {AGAIN}"
        )

    def text(self, name: str) -> str:
        value = self.values.get(name)
        if not isinstance(value, str):
            raise self.refuse(name, "a text")
        return value

    def number(self, name: str) -> float | None:
        """A number, None if there is none; one that is not finite is a number as well."""
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, int | float):
            try:
                return float(value)
            except OverflowError:
                pass
        raise self.refuse(name, "a number")

    def rest(self, names: frozenset[str]) -> dict[str, float]:
        """The finite numbers of the other fields."""
        others = {k: finite(v) for k, v in self.values.items() if k not in names}
        return {name: value for name, value in others.items() if value is not None}


class Folder:
    """A folder, or one file alone; nothing outside of it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.root = self.path if self.path.is_dir() else self.path.parent

    def files(self, pattern: str) -> list[Path]:
        """The regular files that fit the pattern."""
        if self.path != self.root:
            return [self.path] if self.path.match(pattern) and self._is_file(self.path) else []
        matches = list(islice(self.path.glob(pattern), MOST_FILES + 1))
        if len(matches) > MOST_FILES:
            raise ImportRefusedError(
                f"{self.path} has more than {MOST_FILES:,} files {pattern}; name the run's folder"
            )
        return sorted(path for path in matches if self._is_file(path))

    def by_step(
        self, pattern: str, number: re.Pattern[str], *, minimum: int = 1
    ) -> dict[int, Path]:
        """The files by the step in their names, which is the first group of `number`."""
        matches = ((number.fullmatch(path.name), path) for path in self.files(pattern))
        steps = {int(match[1]): path for match, path in matches if match}
        return {step: steps[step] for step in sorted(steps) if minimum <= step <= LARGEST_STEP}

    def _is_file(self, path: Path) -> bool:
        """Whether it is a file that can be read without waiting, as from a pipe."""
        try:
            target = path.resolve(strict=True)
            regular = stat.S_ISREG(target.stat().st_mode)
        except (OSError, RuntimeError):  # it is gone, or links to itself
            return False
        if not target.is_relative_to(self.root):
            raise ImportRefusedError(
                f"{path} is a link to {target}, outside of {self.root}; put the file itself there"
            )
        return regular


def lines(path: Path) -> Iterator[tuple[int, bytes, bool]]:
    """The lines of a file with their numbers, and whether they are complete."""
    try:
        with path.open("rb") as file:
            for number in count(1):
                if not (line := read_line(file, f"{path}:{number}")):
                    return
                if line.strip():
                    yield number, line, line.endswith(b"\n")
    except OSError as error:
        raise ImportRefusedError(
            f"{path} cannot be read: {error.strerror or error}; check its permissions"
        ) from error


def read_line(file: IO[bytes], at: str) -> bytes:
    """The next line; empty at the end."""
    line = file.readline(LONGEST_LINE + 1)
    if len(line) > LONGEST_LINE:
        raise ImportRefusedError(f"{at} is longer than {LONGEST_LINE >> 20} MiB; {AGAIN}")
    return line


def rows(path: Path) -> Iterator[Row]:
    """The objects of a file of JSON lines; UnfinishedError where its last line is cut."""
    for number, line, complete in lines(path):
        yield row_of(line, f"{path}:{number}", complete)


def row_of(line: bytes, at: str, complete: bool = True) -> Row:
    """The object in a line; UnfinishedError if it is not complete."""
    try:
        value = parsed(line)
    except ValueError as error:
        if complete:
            raise ImportRefusedError(f"{at} is not JSON: {error}; {AGAIN}") from error
        raise UnfinishedError(f"{at}: the last line is cut") from error
    if not isinstance(value, dict):
        raise ImportRefusedError(f"{at}: must be an object, got {quoted(value)}; {AGAIN}")
    return Row(at=at, values=value)


def first_row(path: Path) -> Mapping[str, Any]:
    """The first object of a file, empty if there is none: what a format is recognised by."""
    try:
        return next(rows(path)).values
    except (ImportRefusedError, StopIteration):
        return {}


def parsed(line: bytes) -> Any:
    """A JSON value; ValueError if it is none, is nested too deep or repeats a name."""
    try:
        return json.loads(line.decode("utf-8-sig"), object_pairs_hook=once)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def mapping(value: Any) -> dict[str, Any]:
    """An object; empty for anything else."""
    return value if isinstance(value, dict) else {}


def as_text(value: Any) -> str:
    """A value as a text; empty for none."""
    return "" if value is None else str(value)


def finite(value: Any) -> float | None:
    """A number that is finite; None for anything else."""
    usable = isinstance(value, int | float) and abs(value) < 2**63 and math.isfinite(value)
    return float(value) if usable else None
