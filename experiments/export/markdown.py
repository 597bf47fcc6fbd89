"""Markdown tables: each cell on one line, with Markdown and control characters escaped."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from grpo_tui.experiments.db.texts import visible
from grpo_tui.experiments.export.csv import cell


def table(
    header: Sequence[str], rows: Iterable[Mapping[str, Any]], *, digits: int = 0
) -> Iterator[str]:
    """Return the lines of a table; `digits` are those of fractional numbers, 0 for all."""
    yield _line(header)
    yield "|" + " --- |" * len(header)
    for row in rows:
        yield _line([_rounded(row.get(name), digits) for name in header])


def _line(values: Sequence[Any]) -> str:
    return "| " + " | ".join(map(md_cell, values)) + " |"


def _rounded(value: Any, digits: int) -> Any:
    return f"{value:.{digits}g}" if digits and isinstance(value, float) else value


def md_cell(value: Any) -> str:
    """Format a value as a table cell, on one line and escaped."""
    text = cell(value, raw=True).replace("\r\n", "\n")
    for mark, harmless in (
        ("&", "&amp;"), ("<", "&lt;"), ("|", "\\|"), ("\n", "<br>"), ("`", "\\`"), ("*", "\\*"),
        ("[", "\\["),
    ):  # fmt: skip
        text = text.replace(mark, harmless)
    return visible(text)
