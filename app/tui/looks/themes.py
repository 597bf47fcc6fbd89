"""A Textual theme for each palette, and exact colours on 256-colour terminals."""

from functools import lru_cache
from itertools import product
from typing import Any

from rich.color import Color as RichColor
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter
from textual.theme import Theme

from grpo_tui.app.tui.looks.colours import LOOKS, PALETTES, Palette, hex_of, rgb


def theme_of(palette: Palette) -> Theme:
    def colours(table: str) -> dict[str, Any]:
        return {name: hex_of(palette.colour(colour)) for name, colour in LOOKS[table].items()}

    return Theme(
        name=palette.name, dark=palette.dark, text_alpha=1.0, **colours("theme"),
        variables={**colours("variables"), "block-cursor-text-style": "none"},
    )  # fmt: skip


THEMES: tuple[Theme, ...] = tuple(theme_of(palette) for palette in PALETTES.values())

_NUMBERS = {rgb(number): number for number in range(255, 15, -1)}


class ExactXterm(LineFilter):
    """Send colours of the 256-colour palette by number.

    When rich reduces true colour to 256, it rounds nine greys to a neighbour: text at 251 would
    come out as 250.
    """

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002 - the base class has it
        return [
            Segment(text, _numbered(style) if style is not None else None, control)
            for text, style, control in segments
        ]


@lru_cache(maxsize=4096)
def _numbered(style: Style) -> Style:
    foreground, background = _number(style.color), _number(style.bgcolor)
    if foreground is style.color and background is style.bgcolor:
        return style
    return style + Style(color=foreground, bgcolor=background)


def _number(color: RichColor | None) -> RichColor | None:
    if color is None or color.triplet is None:
        return color
    red, green, blue = color.triplet
    number = number_of(red, green, blue)
    return color if number is None else RichColor.from_ansi(number)


def number_of(red: int, green: int, blue: int) -> int | None:
    """The xterm number of a colour, allowing for Textual's arithmetic being off by one."""
    exact = _NUMBERS.get((red, green, blue))
    if exact is not None:
        return exact
    near = product(*((part, part - 1, part + 1) for part in (red, green, blue)))
    return next((_NUMBERS[colour] for colour in near if colour in _NUMBERS), None)
