"""How the parts of a screen share its lines: what answers the most important questions is cut last.

Each screen declares its parts once, the most important first. Where not all of them have the lines
that they need, the last ones keep their titles alone, as steps of the focus: a part that gets it is
opened before all others.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """A part: the lines that it needs, and those that it can use; without `most`, any number.

    `title` are the lines of a part that is cut: none without a frame.
    """

    name: str
    minimum: int
    maximum: int = 0
    title: int = 1


def shared_lines(parts: Sequence[Part], space: int, focused: str = "") -> dict[str, int]:
    """The lines of each part, of `space` in all; what nothing else can use is the first one's."""
    order = sorted(parts, key=lambda part: part.name != focused)
    lines = {part.name: part.title for part in order}
    for part in reversed(order):  # not even the titles may fit
        if sum(lines.values()) > space:
            lines[part.name] = 0
    left = space - sum(lines.values())
    opened = []
    for part in order:
        if part.minimum - lines[part.name] > left:
            break
        left -= part.minimum - lines[part.name]
        lines[part.name] = part.minimum
        opened.append(part)
    for part in opened:
        more = max(0, min(left, part.maximum - part.minimum))
        lines[part.name] += more
        left -= more
    flexible = next((part for part in opened if not part.maximum), order[0])
    lines[flexible.name] += max(0, left)
    return lines
