"""Jump mode: each panel and field gets a letter, and pressing it moves the focus there."""

from typing import Any

from textual import events
from textual.app import ComposeResult
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Static

from grpo_tui.app.tui.textual_private.screens import Dialog

LETTERS = "asdfghjklqwertyuiopzxcvbnm"


def targets(screen: Screen[Any]) -> list[Widget]:
    """Return visible, focusable widgets in reading order."""
    widgets = [w for w in screen.focus_chain if w.region and w.display]
    return sorted(widgets, key=lambda w: (w.region.y, w.region.x))[: len(LETTERS)]


class JumpScreen(Dialog[None]):
    """The letters, drawn over the screen below."""

    DEFAULT_CSS = """
    JumpScreen { background: $background 40%; layers: letters; }
    JumpScreen Static {
        layer: letters; position: absolute; width: 2; height: 1;
        background: $accent; color: $background; text-style: bold;
    }
    """

    def __init__(self, base: Screen[Any]) -> None:
        super().__init__()
        self._base = base
        self._targets = dict(zip(LETTERS, targets(base), strict=False))

    def compose(self) -> ComposeResult:
        for letter, widget in self._targets.items():
            label = Static(f" {letter}", markup=False)
            label.styles.offset = widget.region.offset
            yield label

    def on_key(self, event: events.Key) -> None:
        """Jump to the letter's target; any other key closes."""
        event.stop()
        widget = self._targets.get(event.character or "")
        self.dismiss()
        if widget is not None:
            self._base.set_focus(widget)

    def on_click(self) -> None:
        self.dismiss()
