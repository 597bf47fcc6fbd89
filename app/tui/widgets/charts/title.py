"""The title of a chart: what it shows, and the value of each curve on the right."""

from collections.abc import Sequence
from dataclasses import dataclass

from grpo_tui.app.text.safe_text import cell_len, clip
from grpo_tui.app.tui.widgets.panel import Line, cells


@dataclass(frozen=True, slots=True)
class Readout:
    """A curve's value; its names and details, the longest first, as there is room for them."""

    value: str
    value_style: str
    mark: tuple[str, str] | None = None
    names: tuple[str, ...] = ("",)
    details: tuple[str, ...] = ()

    def spans(self, level: int) -> Line:
        """Mark, name and value, with the name of this level."""
        name = self.names[min(level, len(self.names) - 1)]
        named = [(f"{name} ", "label")] if name else []
        return [*([self.mark] if self.mark else []), *named, (self.value, self.value_style)]


def title_line(
    name: str, readouts: Sequence[Readout], width: int, *,
    chosen: bool, hints: Sequence[str] = (),
) -> Line:  # fmt: skip
    """The chart's name, the hints that fit, and the readouts."""
    right = _readouts(readouts, width - cell_len(name) - 2)
    right = [(" ", ""), *right] if right else []
    name = clip(name, width - 3)
    value_style = "bold headline" if chosen else "label"
    left = [("▸" if chosen else " ", "accent"), (name, value_style)]
    for hint in hints:
        if cells(left) + cells(right) + cell_len(hint) + 2 <= width:
            left.append((f"  {hint}", "label"))
    return [*left, (" " * max(0, width - cells(left) - cells(right)), ""), *right]


def _readouts(readouts: Sequence[Readout], space: int) -> Line:
    """All of them with the longest names that fit, else those that fit without names."""
    levels = max((len(item.names) for item in readouts), default=0)
    for level in range(levels):
        parts = [item.spans(level) for item in readouts]
        free = space - sum(cells(part) + 2 for part in parts) + 2
        if free >= 0:
            details = next((text for text in readouts[0].details if cell_len(text) <= free), "")
            parts[0] += [(details, "label")] if details else []
            return [span for part in parts for span in (("  ", ""), *part)][1:]
    line: Line = []
    for part in (item.spans(levels) for item in readouts):
        if cells(line) + cells(part) + 2 > space:
            return [*line[1:], (" …", "label")] if line else []
        line += [(" ", ""), *part]
    return line[1:]
