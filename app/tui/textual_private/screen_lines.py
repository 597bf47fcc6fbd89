"""The lines of a screen as Textual composes them."""

from typing import Any

from textual.geometry import Size
from textual.screen import Screen
from textual.strip import Strip


def strips_of(screen: Screen[Any], size: Size | None = None) -> list[Strip]:
    """A strip for each line; `size` asks for another size than the screen's."""
    return screen._compositor.render_strips(size)
