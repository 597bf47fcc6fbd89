"""The lines of a screen as composed by Textual."""

from typing import Any

from textual.geometry import Size
from textual.screen import Screen
from textual.strip import Strip


def strips_of(screen: Screen[Any], size: Size | None = None) -> list[Strip]:
    """Return one strip per line; `size` overrides the screen's size."""
    return screen._compositor.render_strips(size)
