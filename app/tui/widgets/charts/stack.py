"""ChartStack: charts below each other, in two columns where it is wide enough."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, ClassVar

from textual.geometry import Offset
from textual.message import Message
from textual.reactive import reactive

from grpo_tui.app.latest import Latest
from grpo_tui.app.text.numbers import clamped
from grpo_tui.app.tui.keys import bindings
from grpo_tui.app.tui.widgets.panel import Line, Panel, Span, cells, visible

GAP = 2
Row = tuple[range, int]
"""The charts of a row, and its lines."""


class ChartStack(Panel):
    """A panel of charts, of which the chosen one is always visible.

    A subclass paints `stacked(rows, width, height, draw)`.
    """

    navigable = True
    BINDINGS = bindings("charts")
    two_columns: ClassVar[int]  # cells from which there are two columns

    log_metrics: reactive[frozenset[str]] = reactive(frozenset())  # metrics with a logarithmic axis

    @dataclass
    class ScaleSwitched(Message):
        """A metric is to have a logarithmic axis, or a linear one again."""

        metric: str

    def __init__(self, title: str, **kwargs: Any) -> None:
        super().__init__(title, **kwargs)
        self._boxes: list[tuple[int, Offset, int]] = []
        self.cache = Latest()

    @property
    def metric(self) -> str:
        """The metric whose axis the chosen chart has; empty without charts."""
        raise NotImplementedError

    def action_log(self) -> None:
        """Switch the axis of the chosen chart."""
        if self.metric:
            self.post_message(self.ScaleSwitched(self.metric))

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

    def below(self, index: int, by: int, count: int) -> int:
        """The chart that is `by` rows further down; below a column follows the next one."""
        columns = 1 if self.alone else self.columns(count)
        order = [i for column in range(columns) for i in range(column, count, columns)]
        return order[clamped(order.index(index) + by, count)]

    def chart_width(self, count: int) -> int:
        """The cells of each of so many charts."""
        columns = self.columns(count)
        return (self.inner.width - (columns - 1) * GAP) // columns

    def rows(self, count: int, chosen: int, height: int, lines: int, more: int = 0) -> list[Row]:
        """The rows of so many charts that fit, the chosen one's among them, with their heights.

        Each needs some lines, the first one `more`; they share what is left over.
        """
        if self.alone:
            return [(range(chosen, chosen + 1), height)]
        columns = self.columns(count)
        charts = [range(i, min(i + columns, count)) for i in range(0, count, columns)]
        needed = [lines + more, *[lines] * (len(charts) - 1)]
        in_sight = visible(needed, height, chosen // columns, top=self._top)
        self._top = in_sight.start
        share, remainder = divmod(height - sum(needed[i] for i in in_sight), len(in_sight))
        return [
            (charts[i], needed[i] + share + (remainder if i == in_sight.start else 0))
            for i in in_sight
        ]

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
        boxes = (
            (index, at.x - corner.x)
            for index, corner, height in reversed(self._boxes)
            if corner.y <= at.y < corner.y + height and at.x >= corner.x
        )
        return next(boxes, None)


def side_by_side(
    blocks: Iterable[Sequence[Line]], width: int, between: Span = (" " * GAP, "")
) -> list[Line]:
    """Blocks of lines beside each other, each `width` wide."""
    lines = []
    for parts in zip_longest(*blocks, fillvalue=[]):
        line: Line = []
        for part in parts:
            line += [between] if line else []
            line += [*part, (" " * (width - cells(part)), "")]
        lines.append(line)
    return lines
