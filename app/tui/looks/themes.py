"""A Textual theme for each palette."""

from typing import Any

from textual.theme import Theme

from grpo_tui.app.tui.looks.colours import LOOKS, PALETTES, Palette, rgb


def theme_of(palette: Palette) -> Theme:
    def colours(table: str) -> dict[str, Any]:
        return {name: rgb(palette.colour(colour)).hex for name, colour in LOOKS[table].items()}

    return Theme(
        name=palette.name,
        dark=palette.marks["dark"],
        text_alpha=1.0,
        **colours("theme"),
        variables={**colours("variables"), "block-cursor-text-style": "none"},
    )


THEMES: tuple[Theme, ...] = tuple(theme_of(palette) for palette in PALETTES.values())
