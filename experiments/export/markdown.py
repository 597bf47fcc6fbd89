"""Markdown tables: each cell on one line, with Markdown and control characters escaped."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
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
    text = re.sub(r"[|`*[]", r"\\\g<0>", escape(cell(value, raw=True), quote=False))
    return visible(re.sub(r"\r?\n", "<br>", text))
