"""The narrator's sentences as one panel."""

from typing import ClassVar

from textual.reactive import reactive

from grpo_tui.app.text.safe_text import cell_len, safe, wrap
from grpo_tui.app.tui.looks.colours import style
from grpo_tui.app.tui.widgets.panel import Line, Panel


class NarratorLine(Panel, can_focus=False):
    """Whole sentences, as many as fit; only one that is longer than the panel is wrapped."""

    DEFAULT_CSS = "NarratorLine { height: 2; }"
    framed: ClassVar[bool] = False
    ALLOW_MAXIMIZE = False

    sentences: reactive[tuple[str, ...]] = reactive(())

    def paint(self, width: int, height: int) -> list[Line]:
        """A mark and the sentences."""
        palette = self.palette
        lines = wrap(self.sentences[0], width - 4, height) if self.sentences else []
        for sentence in map(safe, self.sentences[1:]):
            room = width - 5 - cell_len(sentence)
            place = next((i for i, line in enumerate(lines) if cell_len(line) <= room), None)
            if place is not None:
                lines[place] += f" {sentence}"
            elif len(lines) < height and room >= -1:
                lines.append(sentence)
        mark = style(palette.accent)
        return [
            [(" ▸ " if i == 0 else "   ", mark), (line, style(palette.headline))]
            for i, line in enumerate(lines)
        ]
