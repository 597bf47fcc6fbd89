"""The help screen: the requested topic, the screen's keys, and every metric and setting."""

from collections.abc import Sequence
from typing import Any, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Input, Static

from grpo_tui.app.feed.snapshot import Snapshot
from grpo_tui.app.text.safe_text import cell_len, pad, safe, wrap
from grpo_tui.app.tui.dialogs.help.topics import (
    SCREENS,
    Part,
    alert_parts,
    matching,
    metric_parts,
    panel_parts,
    setting_parts,
    topic_parts,
)
from grpo_tui.app.tui.dialogs.picker import Filtered
from grpo_tui.app.tui.key_actions import key_actions
from grpo_tui.app.tui.keys import bind
from grpo_tui.app.tui.widgets.field import Field

KEYS = ("keys", "keys on every screen")
ENDS = "↑↓ scroll   esc {}"
NO_MATCH = "Nothing matches this text."
REFERENCE_S = 0.05  # after the first frame
WIDTH = 92
MAX_LINES = 20


def content_of(part: Part, width: int) -> Content:
    """A part as escaped text; what follows highlighted words is in a column of its own."""
    pieces: list[Content] = [Content.styled(safe(part.heading), "bold $headline"), Content("\n")]
    column = max((cell_len(safe(word)) + 2 for word, _ in part.paragraphs if word), default=0)
    for word, text in part.paragraphs:
        indent = column if word else 0
        lines = wrap(text.replace("`", ""), max(8, width - indent), MAX_LINES)
        if word:
            pieces.append(Content.styled(pad(word, column), "$accent"))
        text = f"\n{' ' * indent}".join(lines)
        pieces += [Content.styled(text, "$foreground"), Content("\n")]
    return Content("").join(pieces)


def reference(
    snapshot: Snapshot, width: int, needle: str = "", keys: Sequence[Part] = ()
) -> Content:
    """All metrics, alerts and settings that match the needle.

    A needle also finds keys, screens and panels, which are what this page begins with otherwise.
    """
    pieces: list[Content] = []
    lists: dict[str, Sequence[Part]] = {
        **(matching(needle.casefold(), keys) if needle else {}),
        "metrics": metric_parts(snapshot), "alerts": alert_parts(), "settings": setting_parts(),
    }  # fmt: skip
    for name, parts in lists.items():
        matches = [part for part in parts if needle.casefold() in part.haystack]
        if matches:
            heading = name if needle else f"all {name}"
            pieces.append(Content.styled(f"{heading}\n", "$text-muted"))
            pieces += [content_of(part, width) for part in matches]
    return Content("\n").join(pieces) if pieces else Content.styled(NO_MATCH, "$text-muted")


class HelpScreen(Filtered[None]):
    """Show help; typing finds keys, panels, metrics, alerts and settings."""

    DEFAULT_CSS = """
    HelpScreen > Vertical {
        width: 92; max-width: 98%; height: 90%; border: round $border; background: $background;
        border-title-color: $headline; border-subtitle-color: $text-muted; padding: 0 1;
    }
    HelpScreen VerticalScroll { height: 1fr; background: $background; scrollbar-size-vertical: 1; }
    HelpScreen Static { width: 100%; height: auto; padding-right: 1; }
    """
    content = VerticalScroll
    BINDINGS: ClassVar = [
        bind("escape,q,question_mark,f1,enter", "leave", "close", "help.close",
             "Back to where you were"),
        bind("slash", "filter", "filter", "help.filter",
             "Find a key, a panel, a metric, an alert or a setting, as typing does"),
    ]  # fmt: skip

    def __init__(self, topic: str, base: Screen[Any], mode: str, snapshot: Snapshot) -> None:
        super().__init__()
        keys = list(key_actions(base))
        self._parts = [*topic_parts(topic, snapshot)]
        if not topic.startswith("screen:") and mode in SCREENS:
            self._parts += topic_parts(f"screen:{mode}", snapshot)
        self._parts += [part for part in panel_parts(mode) if part not in self._parts]
        for heading, everywhere in zip(KEYS, (False, True), strict=True):
            rows = tuple(
                (key.written, key.help) for key in keys if key.keys and key.everywhere == everywhere
            )
            self._parts += [Part(heading, rows)] if rows else []
        self._snapshot = snapshot

    @property
    def _width(self) -> int:
        """The width of the text, inside the frame and beside the scroll bar."""
        return min(WIDTH, int(0.98 * self.app.size.width)) - 6

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = "help"
            box.border_subtitle = ENDS.format("close")
            with VerticalScroll():
                for part in self._parts:
                    yield Static(content_of(part, self._width), classes="topic")
                yield Static(id="reference")
            yield Field(placeholder="type to find a key, a panel, a metric, an alert or a setting",
                        select_on_focus=False)  # fmt: skip

    def on_mount(self) -> None:
        """Focus the text for scrolling; fill in the reference after the first frame."""
        self.query_one(VerticalScroll).focus()
        self.set_timer(REFERENCE_S, self._refer)

    def _refer(self) -> None:
        if self.is_attached and not self.query_one(Input).value:
            content = reference(self._snapshot, self._width)
            self.query_one("#reference", Static).update(content)

    def on_key(self, event: events.Key) -> None:
        """Scroll what matches while the filter has the focus."""
        text = self.query_one(VerticalScroll)
        moves = {"up": text.scroll_up, "down": text.scroll_down, "pageup": text.scroll_page_up,
                 "pagedown": text.scroll_page_down}  # fmt: skip
        if event.key in moves and self.query_one(Field).has_focus:
            event.stop()
            moves[event.key](animate=False)

    @on(Input.Submitted)
    def read_on(self) -> None:
        """Move the focus from the filter to the results."""
        self.query_one(VerticalScroll).focus()

    @on(Input.Changed)
    def find(self, event: Input.Changed) -> None:
        """Keep only what matches the text, which the first escape clears."""
        self.query_one(Vertical).border_subtitle = ENDS.format("clear" if event.value else "close")
        for item in self.query(".topic"):
            item.display = not event.value
        keys = [part for part in self._parts if part.heading in KEYS]
        content = reference(self._snapshot, self._width, event.value, keys)
        self.query_one("#reference", Static).update(content)
        self.query_one(VerticalScroll).scroll_home(animate=False)
