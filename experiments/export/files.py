"""Write rows to files: CSV, JSON lines, Markdown and Parquet; a file is complete or absent."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, islice
from pathlib import Path
from types import NoneType
from typing import IO, TYPE_CHECKING, Any

from grpo_tui.experiments.db.texts import escape
from grpo_tui.experiments.errors import ExportError, StoreError, check_choice
from grpo_tui.experiments.export.csv import Written, header_of, write_csv
from grpo_tui.experiments.export.json import json_text
from grpo_tui.experiments.export.markdown import HEAD_LINES, table
from grpo_tui.experiments.export.rows import PAGE, Row, rows_of
from grpo_tui.experiments.values import RunSummary

if TYPE_CHECKING:
    from grpo_tui.experiments.reader import StoreReader

DATABASE = b"SQLite format 3\0"
AT_A_TIME = 10_000
FORMATS = ("csv", "jsonl", "parquet", "md")


def header_for(table_name: str, reader: "StoreReader", runs: Sequence[RunSummary]) -> list[str]:
    """Return the columns of an export, from the first rows of each run."""
    return header_of(
        chain.from_iterable(islice(rows_of(table_name, reader, [run]), PAGE) for run in runs)
    )


def write_rows(
    rows: Iterator[Row], format: str, out: Path | IO[str], *, raw: bool = False,
    header: Sequence[str] | None = None,
) -> Written:  # fmt: skip
    """Write rows to a file or stream and count them.

    The columns are `header`, or those of the first thousand rows; a later row with another column
    raises an error, so that no value is dropped silently.
    """
    check_choice("format", format, FORMATS, ExportError)
    first = list(islice(rows, 1000))
    names = list(header or header_of(first))
    everything: Iterator[Row] = chain(first, rows)
    if format != "jsonl":
        everything = _checked(everything, set(names))
    if format == "parquet":
        return Written(_write_parquet(everything, names, out))
    if isinstance(out, Path):
        with replacing(out) as part, part.open("w", encoding="utf-8", newline="") as stream:
            return _write_text(everything, names, format, stream, raw)
    return _write_text(everything, names, format, out, raw)


@contextmanager
def replacing(out: Path) -> Iterator[Path]:
    """Write to a temporary file that replaces `out` once it is complete.

    A device or a FIFO is written to directly; a folder or a database is refused.
    """
    with writing(out):
        if not _is_plain(out):
            yield out
            return
        out = out.resolve()  # a link stays, its target is replaced
        require_folder(out)
        part = out.with_name(f"{out.name}.{os.getpid()}.part")
        try:
            yield part
            part.replace(out)
        finally:
            with suppress(OSError):
                part.unlink(missing_ok=True)


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Name the file in the errors of writing it."""
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        raise ExportError(f"cannot write {out}: {error.strerror or error}") from error


def require_folder(out: Path) -> None:
    """Refuse a path in a folder that does not exist: it is more often mistyped than meant."""
    if not out.parent.is_dir():
        raise ExportError(f"there is no folder for {out}: make {out.parent}, or check the path")


def _is_plain(out: Path) -> bool:
    """Whether the path is, or will be, a file that may be replaced; refuse what must stay."""
    if not out.exists():
        return True
    if out.is_dir():
        raise ExportError(f"{out} is a folder; name a file in it")
    if not out.is_file():
        return False
    with out.open("rb") as file:
        if file.read(len(DATABASE)) == DATABASE:
            raise ExportError(f"{out} is a database, perhaps the store; choose another file")
    return True


def _checked(rows: Iterable[Row], names: set[str]) -> Iterator[Row]:
    for row in rows:
        if not names.issuperset(row):
            extra = ", ".join(sorted(set(row) - names))
            raise ExportError(
                f"a later row has columns that the first ones lack ({extra}); "
                "export this run alone, or as jsonl"
            )
        yield row


def _write_text(
    rows: Iterator[Row], names: list[str], format: str, out: IO[str], raw: bool
) -> Written:
    if format == "csv":
        return write_csv(out, names, rows, raw=raw)
    lines = map(json_text, rows) if format == "jsonl" else table(names, rows)
    count = 0 if format == "jsonl" else -HEAD_LINES
    for line in lines:
        out.write(line + "\n")
        count += 1
    return Written(count)


def _write_parquet(rows: Iterator[Row], names: list[str], out: Path | IO[str]) -> int:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ExportError(
            "parquet needs the optional package pyarrow: pip install 'grpo-tui[parquet]'"
        ) from error
    if not isinstance(out, Path):
        raise ExportError("parquet is binary: give a file with --out")
    table = _arrow_table(pa, list(islice(rows, AT_A_TIME)), names, None)
    count: int = table.num_rows
    with replacing(out) as part, pq.ParquetWriter(part, table.schema) as writer:
        writer.write_table(table)
        while page := list(islice(rows, AT_A_TIME)):
            writer.write_table(_arrow_table(pa, page, names, table.schema))
            count += len(page)
    return count


def _arrow_table(pa: Any, page: list[Row], names: list[str], schema: Any) -> Any:
    columns = {}
    for name in names:
        values = [_arrow_value(row.get(name)) for row in page]
        types = {type(value) for value in values} - {NoneType}
        if schema is not None:
            arrow_type = schema.field(escape(name)).type
        elif not types:
            arrow_type = _guess(pa, name)
        elif types == {int, float}:
            arrow_type = pa.float64()
        else:
            arrow_type = None
            if len(types) > 1:
                values = [None if value is None else json_text(value) for value in values]
        columns[escape(name)] = pa.array(values, arrow_type)
    return pa.table(columns)


def _arrow_value(value: Any) -> Any:
    if isinstance(value, str):
        return escape(value)
    return json_text(value) if isinstance(value, list | tuple | Mapping) else value


def _guess(pa: Any, name: str) -> Any:
    """Guess the type of a column without values: known text columns by name, numbers otherwise."""
    texts = ("at", "text", "note", "error", "parent", "sweep", "started_at", "ended_at", "target")
    return pa.string() if name in texts or name.startswith("cfg.") else pa.float64()
