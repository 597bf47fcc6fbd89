"""The narrator's sentence as one panel."""

from typing import ClassVar

from textual.reactive import reactive

from app.text.safe_text import wrap
from app.tui.looks.colours import style
from app.tui.widgets.panel import Line, Panel


class NarratorLine(Panel, can_focus=False):
    """One sentence, wrapped to the height of the panel."""

    DEFAULT_CSS = "NarratorLine { height: 1; }"
    framed: ClassVar[bool] = False
    ALLOW_MAXIMIZE = False

    sentence: reactive[str] = reactive("")

    def paint(self, width: int, height: int) -> list[Line]:
        """A mark and the sentence."""
        palette = self.palette
        lines = wrap(self.sentence, width - 4, height)
        mark = style(palette.accent)
        return [
            [(" ▸ " if i == 0 else "   ", mark), (line, style(palette.headline))]
            for i, line in enumerate(lines)
        ]
