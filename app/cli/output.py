"""Output of commands: tables and texts for people, JSON for programs."""

import os
import shutil
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from grpo_tui.app.text.safe_text import safe
from grpo_tui.app.text.stderr import print_stderr
from grpo_tui.app.text.table import Row, format_value, table_lines
from grpo_tui.experiments.export.files import replacing
from grpo_tui.experiments.export.json import json_text

BOLD, DIM, RED, GREEN, YELLOW = 1, 2, 31, 32, 33


def print_rows(
    rows: Iterable[Row],
    *,
    as_json: bool,
    table: Iterable[Row] | None = None,
    right: Collection[str] = (),
) -> None:
    """Print rows as JSON, or as a table, which may have other columns."""
    if as_json:
        # One row per line is three times as fast as indented JSON, and `grep` finds rows.
        lines = ",\n".join(map(json_text, rows))
        sys.stdout.write(f"[\n{lines}\n]\n" if lines else "[]\n")
    else:
        print_table(list(rows if table is None else table), right)


def print_json(value: Any) -> None:
    sys.stdout.write(json_text(value, indent=2) + "\n")


def data_stdout() -> IO[str]:
    """Return stdout for file contents: UTF-8, line ends untouched."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(encoding="utf-8", newline="")
    return sys.stdout


def write_out(text: str, out: Path | None) -> None:
    """Write a text to stdout or to a file, which is replaced whole or not at all."""
    if out is None or out == Path("-"):
        sys.stdout.write(text)
        return
    with replacing(out) as part:
        part.write_text(text, encoding="utf-8", errors="backslashreplace")
    print_stderr(f"wrote {out}")


def print_text(text: str, end: str = "\n") -> None:
    """Print lines for people, made safe."""
    print_made_safe(safe(text, "\n"), end)


def print_table(rows: Sequence[Row], right: Collection[str] = ()) -> None:
    """Print aligned columns, cut to the width of a terminal but whole in a pipe."""
    if rows:
        limit = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
        head, *body = table_lines(rows, limit, right)
        print_made_safe("\n".join([dim(head), *body]))


def print_fields(fields: Mapping[str, Any]) -> None:
    """Print a line for each field, whole on every terminal."""
    width = max(map(len, fields))
    for name, value in fields.items():
        print_made_safe(f"{safe(name):{width}}  {safe(format_value(value))}")


def print_made_safe(text: str, end: str = "\n") -> None:
    """Print safe text; characters that the output cannot encode are escaped."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), end=end)


def dim(text: str) -> str:
    return styled(text, DIM)


def styled(text: str, style: int) -> str:
    """Set the text in a style of the terminal, by its SGR number, where colours are shown."""
    return f"\x1b[{style}m{text}\x1b[0m" if uses_colour() else text


def uses_colour() -> bool:
    """Return whether stdout is a terminal and NO_COLOR is not set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def writes_unicode() -> bool:
    """Return whether stdout can encode blocks and marks."""
    return (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "") == "utf8"
