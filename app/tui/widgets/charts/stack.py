"""ChartStack: charts below each other, in two columns where it is wide enough."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

from textual.geometry import Offset

from grpo_tui.app.tui.widgets.panel import Line, Panel, cells, visible

GAP = 2
Value = TypeVar("Value")
Row = tuple[range, int]
"""The charts of a row, and the lines that it needs."""


class ChartStack(Panel):
    """A panel of charts, of which the chosen one is always visible.

    A subclass paints `stacked(rows, width, height, draw)`.
    """

    navigable = True
    two_columns: ClassVar[int]  # cells from which there are two columns

    def __init__(self, title: str, **kwargs: Any) -> None:
        super().__init__(title, **kwargs)
        self._boxes: list[tuple[int, Offset, int]] = []
        self._cache: dict[str, tuple[Any, Any]] = {}

    @property
    def alone(self) -> bool:
        """Whether only the chosen chart is drawn."""
        return self.screen.maximized is self

    def columns(self, count: int) -> int:
        """The number of columns for so many charts."""
        wide = self.inner.width >= self.two_columns
        return 2 if wide and count > 1 and not self.alone else 1

    @property
    def page_rows(self) -> int:
        """The visible rows of charts."""
        return max(1, len({corner.y for _, corner, _ in self._boxes}))

    def chart_width(self, count: int) -> int:
        """The cells of each of so many charts."""
        columns = self.columns(count)
        return (self.inner.width - (columns - 1) * GAP) // columns

    def fitting(self, rows: Sequence[Row], height: int, chosen: int, telling: int = 0) -> list[Row]:
        """The rows that fit, with their heights; the chosen chart is among them."""
        needed = [lines for _, lines in rows]
        index = next((i for i, (charts, _) in enumerate(rows) if chosen in charts), 0)
        indices = visible(needed, height, index, top=self._top)
        self._top = indices.start
        sizes = heights(height, needed[self._top : indices.stop], telling - self._top) or [height]
        return [(charts, size) for (charts, _), size in zip(rows[self._top :], sizes, strict=False)]

    def stacked(
        self, rows: Sequence[Row], width: int, draw: Callable[[int, int, int], list[Line]]
    ) -> list[Line]:
        """The lines of visible rows; `draw` makes those of a chart of some width and height."""
        self._boxes = []
        lines: list[Line] = []
        for charts, height in rows:
            blocks = []
            for column, index in enumerate(charts):
                corner = Offset(column * (width + GAP), len(lines))
                self._boxes.append((index, corner, height))
                blocks.append(draw(index, width, height))
            lines += side_by_side(blocks, width)
        return lines

    def chart_at(self, offset: Offset) -> tuple[int, int] | None:
        """The chart under the mouse, and the column within it."""
        at = self.inside(offset)
        boxes = ((index, at.x - corner.x) for index, corner, height in reversed(self._boxes)
                 if corner.y <= at.y < corner.y + height and at.x >= corner.x)  # fmt: skip
        return next(boxes, None)

    def unchanged(self, name: str, key: object, make: Callable[[], Value]) -> Value:
        """What was made for this key before, or made now."""
        if name not in self._cache or self._cache[name][0] != key:
            self._cache[name] = (key, make())
        value: Value = self._cache[name][1]
        return value


def heights(space: int, needed: Sequence[int], telling: int) -> list[int]:
    """Heights of the rows of charts that fit into `space`, of which each needs its least.

    A row of one line is text and does not grow; a telling row takes three times the spare lines of
    another, and the first row what is left over.
    """
    fitting: list[int] = []
    for lines in needed:
        if sum(fitting) + lines > space:
            break
        fitting.append(lines)
    shares = [0 if lines == 1 else 3 if i < telling else 1 for i, lines in enumerate(fitting)]
    spare = space - sum(fitting)
    if not sum(shares):
        return fitting
    grown = [
        lines + spare * share // sum(shares) for lines, share in zip(fitting, shares, strict=True)
    ]
    return [grown[0] + space - sum(grown), *grown[1:]]


def side_by_side(blocks: Sequence[list[Line]], width: int) -> list[Line]:
    """One chart, or two beside each other, the left one `width` wide."""
    if len(blocks) < 2:
        return blocks[0] if blocks else []
    lines = []
    for left, right in zip(*blocks, strict=True):
        lines.append([*left, (" " * (width - cells(left) + GAP), ""), *right])
    return lines
