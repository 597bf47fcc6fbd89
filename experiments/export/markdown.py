"""Tables in Markdown: each cell on one line, with nothing that Markdown or a terminal obeys."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from experiments.db.texts import visible
from experiments.export.csv import cell

HEAD_LINES = 2


def table(
    header: Sequence[str], rows: Iterable[Mapping[str, Any]], *, titles: Sequence[str] = (),
    digits: int = 0,
) -> Iterator[str]:  # fmt: skip
    """The lines of a table.

    `titles` are the heads of its columns where they are not the names; `digits` are those that are
    left of a number with a fraction, all of them where 0.
    """
    yield _line(titles or header)
    yield "|" + " --- |" * len(header)
    for row in rows:
        yield _line([_rounded(row.get(name), digits) for name in header])


def _line(values: Sequence[Any]) -> str:
    return "| " + " | ".join(map(md_cell, values)) + " |"


def _rounded(value: Any, digits: int) -> Any:
    return f"{value:.{digits}g}" if digits and isinstance(value, float) else value


def md_cell(value: Any) -> str:
    """A value as a cell of a Markdown table, on one line and harmless."""
    text = cell(value, raw=True).replace("\r\n", "\n")
    for mark, harmless in (
        ("&", "&amp;"), ("<", "&lt;"), ("|", "\\|"), ("\n", "<br>"), ("`", "\\`"), ("*", "\\*"),
        ("[", "\\["),
    ):  # fmt: skip
        text = text.replace(mark, harmless)
    return visible(text)
