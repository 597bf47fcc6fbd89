"""Colours of data and chrome as exact xterm-256 numbers, one palette per theme."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

from rich.color import Color
from rich.color_triplet import ColorTriplet
from rich.style import Style

DARK = "dark"

FAINT, READABLE = 3.0, 4.5
EFFECTS = ("bold", "underline", "italic", "reverse")
MIDDLE = 3  # of the seven colours for advantages


def rgb(number: int) -> ColorTriplet:
    """The red, green and blue of an xterm-256 colour, from number 16 on."""
    return Color.from_ansi(number).get_truecolor()


def luminance(number: int) -> float:
    """Relative luminance from 0 to 1, as WCAG 2 defines it."""
    red, green, blue = (
        part / 3294.6 if part <= 10 else ((part / 255 + 0.055) / 1.055) ** 2.4
        for part in rgb(number)
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: int, other: int) -> float:
    """Contrast ratio (lighter + .05) / (darker + .05); easily readable text needs at least 4.5."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@dataclass(frozen=True, slots=True)
class Palette:
    """The colour of each kind of mark, as xterm-256 numbers; palettes.toml has their names."""

    name: str
    marks: Mapping[str, Any]

    def colour(self, name: str) -> int:
        """The colour of a name: `text`; `cycle.3` for one of several; `series.kl` for a metric."""
        kind, _, key = name.partition(".")
        value = self.marks[kind]
        if kind == "series":
            return int(value.get(key, self.colour("cycle.0")))
        return int(value[int(key) % len(value)] if key else value)


def push_colour(value: float | None, largest: float = 1.5, ramp: str = "push") -> str:
    """The name of a colour for an advantage: `push` for text, readable at every strength.

    `advantage` is for backgrounds, grey for zero.
    """
    if value is None or value != value:
        return "label"
    share = max(-1.0, min(1.0, value / largest)) if largest else 0.0
    offset = max(round(abs(share) * MIDDLE), int(bool(share)))
    return f"{ramp}.{MIDDLE + (offset if share > 0 else -offset)}"


LOOKS = tomllib.loads(files(__package__).joinpath("palettes.toml").read_text(encoding="utf-8"))
PALETTES: dict[str, Palette] = {
    name: Palette(name, {**LOOKS["palettes"][DARK], **colours})
    for name, colours in LOOKS["palettes"].items()
}


@lru_cache(maxsize=4096)
def style_named(theme: str, name: str) -> Style:
    """The style of a name in a theme, as `bold headline on cursor`; the base style for `""`.

    A colour that is hard to read on a background is that of plain text. Themes that are not ours
    have the dark palette.
    """
    written, on, back = f" {name}".partition(" on ")
    names, palette = written.split(), PALETTES.get(theme, PALETTES[DARK])
    colours = [palette.colour(part) for part in names if part not in EFFECTS]
    front = colours[0] if colours else None
    ground = palette.colour(back.split()[-1]) if on else None
    if front is not None and ground is not None and FAINT <= contrast(front, ground) < READABLE:
        front = palette.colour("text")  # very low contrast, as for guide lines, is intended
    color, bgcolor = (
        Color.from_triplet(rgb(number)) if number is not None else None
        for number in (front, ground)
    )
    effects: dict[str, Any] = {part: True for part in names if part in EFFECTS}
    return Style(color=color, bgcolor=bgcolor, **effects)
