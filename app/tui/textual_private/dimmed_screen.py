"""The screen beneath a dialog, dimmed, with cached styles.

Textual's own class renders the whole screen through rich in each frame, which takes longer than all
the other work of opening a dialog.
"""

from functools import lru_cache
from typing import TYPE_CHECKING

from rich.segment import Segment
from rich.style import Style as RichStyle
from textual.color import Color
from textual.geometry import Size
from textual.strip import Strip
from textual.visual import RenderOptions, Visual

from grpo_tui.app.tui.textual_private.screen_lines import strips_of

if TYPE_CHECKING:
    from textual.css.styles import RulesMap
    from textual.screen import Screen
    from textual.style import Style


class DimmedScreen(Visual):
    """Replaces Textual's `BackgroundScreen`."""

    def __init__(self, screen: "Screen[object]", color: Color) -> None:
        self._screen = screen
        self._color = color

    def render_strips(
        self, width: int, height: int | None, style: "Style", options: RenderOptions  # noqa: ARG002 - the base class has it
    ) -> list[Strip]:  # fmt: skip
        """Return the screen's lines in dimmed colours; overrides Textual."""
        size = Size(width, height if height is not None else self._screen.size.height)
        base, tint = style.rich_style, self._color
        return [
            Strip([Segment(text, _dimmed(original, base, tint)) for text, original, _ in strip],
                  strip.cell_length)
            for strip in strips_of(self._screen, size)
        ]  # fmt: skip

    def get_optimal_width(self, rules: "RulesMap", container_width: int) -> int:  # noqa: ARG002 - the base class has it
        return container_width

    def get_height(self, rules: "RulesMap", width: int) -> int:  # noqa: ARG002 - the base class has it
        return self._screen.size.height


@lru_cache(maxsize=2048)
def _dimmed(style: RichStyle | None, base: RichStyle, tint: Color) -> RichStyle:
    if style is None:
        return base
    plain = style.clear_meta_and_links()
    foreground, background = (
        (Color.from_rich_color(color) + tint).rich_color if color is not None else None
        for color in (plain.color, plain.bgcolor)
    )
    return base + plain + RichStyle.from_color(foreground, background)
