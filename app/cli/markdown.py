"""Markdown tables: each cell on one line, with Markdown and control characters escaped."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from grpo_tui.experiments.export.csv import cell
from grpo_tui.experiments.export.json import without_controls

HTML = re.compile(r"&(?=[#\w])|<(?=[a-zA-Z/!?])|^>")  # `p < .001` stays readable on terminals.


def table(header: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Return the lines of a table, in which fractional numbers have four digits."""
    yield _line(header)
    yield "|" + " --- |" * len(header)
    for row in rows:
        values = map(row.get, header)
        yield _line([f"{value:.4g}" if isinstance(value, float) else value for value in values])


def _line(values: Sequence[Any]) -> str:
    return "| " + " | ".join(map(md_cell, values)) + " |"


def md_cell(value: Any) -> str:
    """Format a value as a table cell, on one line and escaped."""
    text = HTML.sub(lambda mark: escape(mark[0]), cell(value, raw=True))
    text = re.sub(r"[|`*[]", r"\\\g<0>", text)
    return without_controls(re.sub(r"\r?\n", "<br>", text))
