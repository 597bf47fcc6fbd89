"""Reads charts back: from the cells of a picture to dots, labels and numbers."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from grpo_tui.app.tui.widgets.panel import Line

BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
Dot = tuple[int, int]
FAINT = "raw"  # drawn below every curve
GRID = "guide"  # in empty cells only
NAME = "label"  # of a guide line, with a space on both sides; over the faint dots
SLACK = 0.01  # of a dot, for rounding; plotext is off by .005


def value_of(label: str) -> float:
    """The number that a label says."""
    text = label.strip().replace("−", "-")
    size = 1.0
    for mark, factor in (("%", 0.01), ("k", 1e3), ("M", 1e6), ("G", 1e9)):
        if text.endswith(mark):
            text, size = text.removesuffix(mark), size * factor
    return float(text) * size


@dataclass
class Picture:
    """The dots of a plot by colour, what else is in its cells, and the labels by row."""

    width: int
    height: int
    dots: dict[str, set[Dot]] = field(default_factory=lambda: defaultdict(set))
    cells: dict[Dot, tuple[str, str]] = field(default_factory=dict)
    labels: dict[int, float] = field(default_factory=dict)
    inset: tuple[float, float] = (0.0, 0.0)  # dots between the edges and the ends of both axes

    @property
    def wide(self) -> int:
        return 2 * self.width

    @property
    def tall(self) -> int:
        return 4 * self.height

    def place(self, value: float) -> float:
        """Where a value belongs between the first and the last label, in dots from the top."""
        if len(self.labels) == 1:
            ((row, known),) = self.labels.items()
            assert abs(value - known) <= 5e-2 * abs(known) + 1e-15, (value, known)
            dots = (y for _, y in sorted(self.all_dots()) if y // 4 == row)
            return next(dots, 4 * row + 1.5)  # a mark may be over the only dot
        low, high = self.labels[self.height - 1], self.labels[0]
        inset = self.inset[1]
        return inset + (high - value) * (self.tall - 1 - 2 * inset) / (high - low)

    def all_dots(self) -> set[Dot]:
        return set().union(*self.dots.values())

    def near(self, colour: str, x: float, y: float) -> bool:
        """Whether a dot of this colour, or something drawn over it, is within half a dot."""
        half = 0.5 + SLACK
        for at_x in range(math.floor(x - half), math.ceil(x + half) + 1):
            for at_y in range(math.floor(y - half), math.ceil(y + half) + 1):
                if abs(at_x - x) <= half and abs(at_y - y) <= half:
                    if (at_x, at_y) in self.dots[colour]:
                        return True
                    cell = self.cells.get((at_x >> 1, at_y >> 2))
                    braille = cell is not None and 0x2800 < ord(cell[0]) < 0x2900
                    if cell is not None and (cell[1] not in (colour, FAINT) or not braille):
                        return True
        return False


def read(lines: Sequence[Line], margin: int) -> Picture:
    """Read the rows of a plot, of which the first cells are labels."""
    found = Picture(sum(len(text) for text, _ in lines[0]) - margin, len(lines))
    for y, line in enumerate(lines):
        cells = [(char, look.removeprefix("bold ")) for text, look in line for char in text]
        label = "".join(char for char, _ in cells[:margin]).strip()
        if label:
            found.labels[y] = value_of(label)
        for x, (char, colour) in enumerate(cells[margin:]):
            if char == "┈" or (char == " " and colour != NAME) or colour == GRID:
                continue
            found.cells[x, y] = (char, colour)
            bits = ord(char) - 0x2800
            if 0 < bits < 256:
                found.dots[colour] |= {
                    (2 * x + side, 4 * y + place)
                    for side in range(2)
                    for place in range(4)
                    if bits & BITS[side][place]
                }
    return found


def on_lines(dot: Dot, paths: Iterable[Sequence[tuple[float, float]]]) -> bool:
    """Whether a dot is on one of these lines, each through points in dots."""
    x, y = dot
    for path in paths:
        for (x0, y0), (x1, y1) in zip(path, [*path[1:], path[-1]], strict=True):
            if not (x0 - 0.51 <= x <= x1 + 0.51):
                continue
            if not min(y0, y1) - 0.51 <= y <= max(y0, y1) + 0.51:
                continue
            # the distance from a line between rounded points, along the shorter way
            across, down = x1 - x0, y1 - y0
            if max(abs(across), abs(down)) < 2 or abs(
                (x - x0) * down - (y - y0) * across
            ) <= 1.6 * max(abs(across), abs(down)):
                return True
    return False
