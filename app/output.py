"""What commands print: a table for people, JSON or CSV for programs."""

import os
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from experiments.csv_files import json_text, write_csv

Row = Mapping[str, Any]


def print_rows(
    rows: Sequence[Row], *, as_json: bool, as_csv: bool, header: Sequence[str] | None = None,
    table: Sequence[Row] | None = None, right: Iterable[str] = (), raw: bool = False,
) -> None:  # fmt: skip
    """Print rows as JSON, CSV, or as a table, which may show other columns."""
    if as_json:
        sys.stdout.write(json_text(list(rows), indent=2) + "\n")
    elif as_csv:
        names = (
            list(header) if header else list(dict.fromkeys(name for row in rows for name in row))
        )
        with_stdout_utf8()
        write_csv(sys.stdout, names, rows, raw=raw)
    else:
        print_table(rows if table is None else table, right=right)


def print_json(value: Any) -> None:
    """Print one JSON value."""
    sys.stdout.write(json_text(value, indent=2) + "\n")


def with_stdout_utf8() -> None:
    """Have stdout write CSV as it is: UTF-8, line ends untouched."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(encoding="utf-8", newline="")


def print_table(rows: Sequence[Row], *, right: Iterable[str] = ()) -> None:
    """Print aligned columns; on a terminal cut to its width, elsewhere whole."""
    if not rows:
        return
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[harmless(shown(row.get(name))) for name in names] for row in rows]
    numeric = {name for name in names if name in set(right) or _all_numbers(rows, name)}
    widths = [
        max(width(name), *(width(line[place]) for line in cells))
        for place, name in enumerate(names)
    ]
    limit = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    widths = fit(widths, limit)
    print(dim(_line(names, names, widths, numeric)))
    for line in cells:
        print(_line(line, names, widths, numeric))


def fit(widths: list[int], limit: int) -> list[int]:
    """Narrow the widest columns until the table fits; a limit of 0 is none."""
    widths = list(widths)
    while limit and sum(widths) + 2 * (len(widths) - 1) > limit and max(widths) > 8:
        widths[widths.index(max(widths))] -= 1
    return widths


def _line(
    cells: Sequence[str], names: Sequence[str], widths: Sequence[int], numeric: set[str]
) -> str:
    parts = []
    for text, name, size in zip(cells, names, widths, strict=True):
        shown_text = cut(text, size)
        blank = " " * (size - width(shown_text))
        parts.append(blank + shown_text if name in numeric else shown_text + blank)
    return "  ".join(parts).rstrip()


def _all_numbers(rows: Sequence[Row], name: str) -> bool:
    values = [row.get(name) for row in rows]
    return all(value is None or isinstance(value, int | float) for value in values)


def shown(value: Any) -> str:
    """A value as people read it: four significant digits, no brackets."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(shown(item) for item in value)
    return str(value)


def harmless(text: str) -> str:
    """Untrusted text on one line, with control and bidirectional characters made visible."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_visible(character) for character in text)


def _visible(character: str) -> str:
    if character == "\n":
        return "↵"
    if character == "\t":
        return " "
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return f"\\x{ord(character):02x}" if ord(character) < 256 else f"\\u{ord(character):04x}"
    return character


def width(text: str) -> int:
    """Columns that the text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(character)
        else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )  # fmt: skip


def cut(text: str, size: int) -> str:
    """The text within so many columns, ending in `…` where something is missing."""
    if width(text) <= size:
        return text
    kept, used = [], 0
    for character in text:
        used += width(character)
        if used > size - 1:
            break
        kept.append(character)
    return "".join(kept) + "…"


def dim(text: str) -> str:
    """Chrome: dim on a colour terminal, plain elsewhere."""
    return f"\x1b[2m{text}\x1b[0m" if wants_colour() else text


def wants_colour() -> bool:
    """Whether stdout is a terminal and NO_COLOR is not set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")
