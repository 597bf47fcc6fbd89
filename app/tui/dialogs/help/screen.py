"""The help screen: the requested topic, the panels of the screen, and its keys."""

from typing import Any

from textual.content import Content
from textual.screen import Screen

from grpo_tui.app.text.safe_text import cell_len, pad, safe, wrap
from grpo_tui.app.tui.dialogs.help.subject import HelpSubject
from grpo_tui.app.tui.dialogs.help.topics import (
    PANELS_OF,
    SCREENS,
    HelpPart,
    health_part,
    topic_part,
)
from grpo_tui.app.tui.dialogs.page import PageDialog, page_width
from grpo_tui.app.tui.key_actions import key_actions
from grpo_tui.app.tui.keys import bindings

MAX_LINES = 20


def content_of(part: HelpPart, width: int) -> Content:
    """A part as escaped text; what follows highlighted words is in a column of its own."""
    pieces: list[Content] = [Content.styled(safe(part.heading), "bold $headline"), Content("\n")]
    column = max((cell_len(safe(name)) + 2 for name, _ in part.paragraphs if name), default=0)
    for name, text in part.paragraphs:
        indent = column if name else 0
        lines = wrap(text.replace("`", ""), max(8, width - indent), MAX_LINES)
        if name:
            pieces.append(Content.styled(pad(name, column), "$accent"))
        text = f"\n{' ' * indent}".join(lines)
        pieces += [Content.styled(text, "$foreground"), Content("\n")]
    return Content("").join(pieces)


class HelpScreen(PageDialog):
    """Show help; the palette has the help on everything else."""

    hint = "↑↓ scroll   / find   esc close"
    BINDINGS = bindings("help")

    def __init__(self, subject: HelpSubject, base: Screen[Any], mode: str) -> None:
        keys = list(key_actions(base))
        screen = [f"screen:{mode}"] if mode in SCREENS else []
        panels = (f"panel:{name}" for name in PANELS_OF.get(mode, ()))
        topics = dict.fromkeys([subject.topic, *screen, *panels])
        parts = [topic_part(topic, subject.run) for topic in topics]
        if subject.health is not None:
            parts.insert(1, health_part(*subject.health))
        if subject.compared:
            parts.insert(1, HelpPart("in the compared runs", subject.compared))
        for heading, everywhere in (("keys", False), ("keys on every screen", True)):
            rows = tuple(
                (key.keys, key.help) for key in keys if key.keys and key.everywhere == everywhere
            )
            parts += [HelpPart(heading, rows)] if rows else []
        width = page_width(base.app)
        super().__init__("help", [content_of(part, width) for part in parts])

    def action_find(self) -> None:
        """Close, and open the palette."""
        self.dismiss(None)
        self.app.action_command_palette()
