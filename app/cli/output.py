"""Output of commands: a table for people, JSON or CSV for programs."""

import io
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any

from grpo_tui.app.text.table import Row, format_value, table_lines
from grpo_tui.experiments.db.texts import visible
from grpo_tui.experiments.export.csv import header_of, write_csv
from grpo_tui.experiments.export.json import json_text


def print_rows(
    rows: Sequence[Row],
    *,
    as_json: bool = False,
    as_csv: bool = False,
    header: Sequence[str] | None = None,
    table: Sequence[Row] | None = None,
    raw: bool = False,
) -> None:
    """Print rows as JSON, CSV, or a table, which may have other columns."""
    if as_json:
        # one row per line: three times as fast as indented JSON, and `grep` finds rows
        lines = ",\n".join(map(json_text, rows))
        sys.stdout.write(f"[\n{lines}\n]\n" if rows else "[]\n")
    elif as_csv:
        write_csv(data_stdout(), header or header_of(rows), rows, raw=raw)
    else:
        print_table(rows if table is None else table)


def print_json(value: Any) -> None:
    sys.stdout.write(json_text(value, indent=2) + "\n")


def data_stdout() -> IO[str]:
    """Return stdout for file contents: UTF-8, line ends untouched; escaped if it is a terminal."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(encoding="utf-8", newline="")
    return _OnTerminal(sys.stdout) if sys.stdout.isatty() else sys.stdout


class _OnTerminal(io.StringIO):
    """Escapes control characters in text written to a terminal."""

    def __init__(self, terminal: IO[str]) -> None:
        super().__init__()
        self._terminal = terminal

    def write(self, text: str) -> int:
        """Write the text with its line ends; everything else is made visible."""
        lines = re.split(r"(\r?\n)", text)
        return self._terminal.write("".join(
            part if index % 2 else visible(part) for index, part in enumerate(lines)
        ))  # fmt: skip


def print_text(text: str) -> None:
    """Print lines for people, escaped."""
    for line in text.split("\n"):
        print(visible(line))


def print_table(rows: Sequence[Row]) -> None:
    """Print aligned columns, cut to the width of a terminal but whole in a pipe."""
    if rows:
        limit = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
        head, *body = table_lines(rows, limit)
        print(dim(head), *body, sep="\n")


def print_fields(fields: Mapping[str, Any]) -> None:
    """Print a line for each field, whole on every terminal."""
    width = max(map(len, fields))
    for name, value in fields.items():
        print(f"{name:{width}}  {visible(format_value(value))}")


def dim(text: str) -> str:
    """Dim the text on a colour terminal."""
    return f"\x1b[2m{text}\x1b[0m" if uses_colour() else text


def uses_colour() -> bool:
    """Return whether stdout is a terminal and NO_COLOR is not set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def writes_unicode() -> bool:
    """Return whether stdout can encode blocks and marks."""
    return (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "") == "utf8"
