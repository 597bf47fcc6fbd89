"""Tables of text: aligned columns under a line of names."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from grpo_tui.app.text.safe_text import cell_len, pad, safe
from grpo_tui.experiments.export.csv import header_of

Row = Mapping[str, Any]
MIN_WIDTH = 8  # cells of a column that is cut


def table_lines(rows: Sequence[Row], limit: int = 0, right: Collection[str] = ()) -> list[str]:
    """Return the lines, cut to `limit` cells if that is not 0.

    Columns of numbers and those named in `right` are aligned at the right.
    """
    names = header_of(rows)
    texts = [names, *([format_value(row.get(name)) for name in names] for row in rows)]
    cells = [[safe(text) for text in line] for line in texts]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    while limit and sum(widths) + 2 * (len(widths) - 1) > limit and max(widths) > MIN_WIDTH:
        widths[widths.index(max(widths))] -= 1
    sides = [
        ">"
        if name in right or all(isinstance(row.get(name), int | float | None) for row in rows)
        else "<"
        for name in names
    ]
    return ["  ".join(map(pad, line, widths, sides)).rstrip() for line in cells]


def format_value(value: Any) -> str:
    """Format a value for people: four significant digits, no brackets."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(format_value, value))
    return str(value)
