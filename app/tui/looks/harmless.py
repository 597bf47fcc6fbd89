"""What a terminal would obey never leaves a widget, whatever the widget draws."""

from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from grpo_tui.app.text.harmless import without_acting


class Harmless(LineFilter):
    """Leaves out control characters; texts are made visible before, where they are laid out."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002 - the base class has it
        if all(text.isprintable() for text, _, _ in segments):
            return segments
        return [Segment(without_acting(text), style, control) for text, style, control in segments]
