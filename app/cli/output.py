"""Output of commands: a table for people, JSON or CSV for programs."""

import io
import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from typing import IO, Any

from grpo_tui.app.text.stderr import print_stderr
from grpo_tui.experiments.db.texts import visible
from grpo_tui.experiments.export.csv import header_of, write_csv
from grpo_tui.experiments.export.json import json_text

Row = Mapping[str, Any]


def print_rows(
    rows: Sequence[Row], *, as_json: bool, as_csv: bool, header: Sequence[str] | None = None,
    table: Sequence[Row] | None = None, raw: bool = False,
) -> None:  # fmt: skip
    """Print rows as JSON, CSV, or a table, which may have other columns."""
    if as_json:
        # one row per line: three times as fast as indented JSON, and `grep` finds rows
        lines = ",\n".join(map(json_text, rows))
        sys.stdout.write(f"[\n{lines}\n]\n" if rows else "[]\n")
    elif as_csv:
        written = write_csv(data_stdout(), header or header_of(rows), rows, raw=raw)
        warn_of_escapes(written.escaped)
    else:
        print_table(rows if table is None else table)


def warn_of_escapes(cells: int) -> None:
    """Say on stderr that cells of a CSV differ from their texts, and what writes them as is."""
    if cells:
        are = "1 cell is" if cells == 1 else f"{cells} cells are"
        print_stderr(
            f"{are} escaped, against spreadsheet formulas and control characters; "
            "--raw writes texts as they are"
        )


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
    if not rows:
        return
    names = header_of(rows)
    heads = [visible(name) for name in names]
    cells = [[visible(format_value(row.get(name))) for name in names] for row in rows]
    numeric = {name for name in names if _all_numbers(rows, name)}
    widths = [
        max(width(head), *(width(line[index]) for line in cells))
        for index, head in enumerate(heads)
    ]
    limit = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    widths = narrow(widths, limit)
    print(dim(_line(heads, names, widths, numeric)))
    for line in cells:
        print(_line(line, names, widths, numeric))


def narrow(widths: list[int], limit: int) -> list[int]:
    """Narrow the widest columns until the table fits; a limit of 0 means none."""
    widths = list(widths)
    while limit and sum(widths) + 2 * (len(widths) - 1) > limit and max(widths) > 8:
        widths[widths.index(max(widths))] -= 1
    return widths


def _line(
    cells: Sequence[str], names: Sequence[str], widths: Sequence[int], numeric: set[str]
) -> str:
    parts = []
    for text, name, size in zip(cells, names, widths, strict=True):
        fitting = cut(text, size)
        blank = " " * (size - width(fitting))
        parts.append(blank + fitting if name in numeric else fitting + blank)
    return "  ".join(parts).rstrip()


def _all_numbers(rows: Sequence[Row], name: str) -> bool:
    values = [row.get(name) for row in rows]
    return all(value is None or isinstance(value, int | float) for value in values)


def format_value(value: Any) -> str:
    """Format a value for people: four significant digits, no brackets."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(format_value(item) for item in value)
    return str(value)


def width(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(character)
        else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )  # fmt: skip


def cut(text: str, size: int) -> str:
    """Cut the text to a number of cells, ending in `…` if anything is missing."""
    if width(text) <= size:
        return text
    characters, used = [], 0
    for character in text:
        used += width(character)
        if used > size - 1:
            break
        characters.append(character)
    return "".join(characters) + "…"


def dim(text: str) -> str:
    """Dim the text on a colour terminal."""
    return f"\x1b[2m{text}\x1b[0m" if uses_colour() else text


def uses_colour() -> bool:
    """Return whether stdout is a terminal and NO_COLOR is not set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def writes_unicode() -> bool:
    """Return whether stdout can encode blocks and marks."""
    return (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "") == "utf8"
