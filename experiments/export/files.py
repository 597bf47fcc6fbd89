"""Write rows to files: CSV and JSON lines; a file is complete or absent."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING

from grpo_engine.paths import begins_with
from grpo_tui.experiments.errors import ExportError, StoreError
from grpo_tui.experiments.export.csv import header_of, write_csv
from grpo_tui.experiments.export.json import json_text
from grpo_tui.experiments.export.rows import PAGE, Row, rows_of
from grpo_tui.experiments.values import RunSummary

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader

DATABASE = b"SQLite format 3\0"


def header_for(table_name: str, reader: "StoreReader", runs: Sequence[RunSummary]) -> list[str]:
    """Return the columns of an export, from the first rows of each run."""
    return header_of(
        row for run in runs for row in islice(rows_of(table_name, reader, [run]), PAGE)
    )


def write_rows(
    rows: Iterator[Row],
    format: str,
    out: Path | IO[str],
    *,
    raw: bool = False,
    header: Sequence[str] = (),
) -> int:
    """Write rows to a file or stream and count them; `header` are the columns of a CSV."""
    if isinstance(out, Path):
        with replacing(out) as part, part.open("w", encoding="utf-8", newline="") as stream:
            return write_rows(rows, format, stream, raw=raw, header=header)
    if format == "jsonl":
        count = 0
        for row in rows:
            out.write(json_text(row) + "\n")
            count += 1
        return count
    return write_csv(out, header, rows, raw=raw)


@contextmanager
def replacing(out: Path) -> Iterator[Path]:
    """Write to a temporary file that replaces `out` once it is complete.

    A device or a FIFO is written to directly; a folder or a database is refused.
    """
    with writing(out):
        if not _is_plain(out):
            yield out
            return
        out = out.resolve()  # replaces the target of a link, not the link
        require_folder(out)
        part = out.with_name(f"{out.name}.{os.getpid()}.part")
        try:
            yield part
            part.replace(out)
        finally:
            with suppress(OSError):
                part.unlink()


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Name the file in errors of writing it."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        raise ExportError(f"cannot write {out}: {error.strerror or error}") from error


def require_folder(out: Path) -> None:
    """Refuse a path in a folder that does not exist: it is probably mistyped."""
    if not out.parent.is_dir():
        raise ExportError(f"there is no folder for {out}: make {out.parent}, or check the path")


def _is_plain(out: Path) -> bool:
    """Whether the path is a file to replace or make; refuse folders and databases."""
    if not out.exists():
        return True
    if out.is_dir():
        raise ExportError(f"{out} is a folder; name a file in it")
    if not out.is_file():
        return False
    if begins_with(out, DATABASE):
        raise ExportError(f"{out} is a database, perhaps the store; choose another file")
    return True
