"""Lists to choose one item from, with its description beside it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.reactive import reactive
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from app.text.safe_text import cell_len, clip, safe
from app.tui.looks.colours import Palette
from app.tui.screens.base import NARROW
from app.tui.textual_private.screens import Dialog
from app.tui.widgets.panel import Line, Panel

Details = Callable[[str, int, Palette], list[Line]]
NAMES, LINES = 40, 108


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the list; an empty value is a heading."""

    value: str
    label: str
    note: str = ""
    bad: bool = False


class DetailsPanel(Panel, can_focus=False):
    """The description of the highlighted entry."""

    framed: ClassVar[bool] = False
    value: reactive[str] = reactive("")

    def __init__(self, details: Details, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._details = details

    def paint(self, width: int, height: int) -> list[Line]:
        lines = self._details(self.value, width, self.palette) if self.value else []
        if len(lines) > height > 0:
            lines = [*lines[: height - 1], [("…", None)]]
        return lines


class Pick(Dialog[str | None]):
    """Return the chosen value, or None if dismissed; with `lines`, notes may be a line long."""

    DEFAULT_CSS = """
    Pick { align: center middle; }
    Pick > Vertical {
        width: 116; max-width: 96%; height: 34; max-height: 90%; padding: 0 1;
        border: round $border; background: $background; border-title-color: $headline;
        border-subtitle-color: $text-muted;
    }
    Pick Static { color: $text-muted; width: 100%; margin: 0 1; }
    Pick OptionList {
        width: 44; height: 1fr; border: none; background: $background; padding: 0;
        scrollbar-size-vertical: 1;
    }
    Pick OptionList:focus { border: none; background-tint: transparent 0%; }
    Pick DetailsPanel { margin-left: 2; }
    Pick.-narrow OptionList { width: 1fr; height: 2fr; }
    Pick.-narrow Horizontal { layout: vertical; }
    Pick.-narrow DetailsPanel { width: 1fr; height: 3fr; margin: 1 0 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "cancel", "cancel", id="new.pick_cancel", tooltip="Change nothing"),
        Binding("j", "cursor(1)", "down", id="new.pick_down", show=False, tooltip="The next one"),
        Binding("k", "cursor(-1)", "up", id="new.pick_up", show=False, tooltip="The one above"),
    ]

    def __init__(
        self, title: str, hint: str, entries: Sequence[Entry], details: Details, chosen: str = "",
        *, lines: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self._whole_lines = lines
        self._title, self._hint, self._entries = title, hint, entries
        self._details, self._chosen = details, chosen

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = self._title
            box.border_subtitle = "↑↓ browse   ⏎ choose   esc close"
            yield Static(safe(self._hint), markup=False)
            with Horizontal():
                yield OptionList(*(self._option(entry) for entry in self._entries))
                yield DetailsPanel(self._details)

    def _option(self, entry: Entry) -> Option:
        if not entry.value:
            return Option(Content.styled(safe(entry.label), "$text-muted"), disabled=True)
        name = clip(f"✗ {entry.label}" if entry.bad else entry.label, NAMES)
        room = min(LINES, int(self.app.size.width * 0.96) - 14) if self._is_narrow() else NAMES
        if entry.note:
            longest = max(cell_len(one.label) for one in self._entries if one.note)
            name += " " * (min(room // 2, longest + 2) - cell_len(name))
        note = clip(entry.note, room - cell_len(name) - 1)
        return Option(Content.assemble((f"{name} ", "bold $headline"), (note, "$foreground")))

    def _is_narrow(self) -> bool:
        """Whether the description is below the list."""
        return self._whole_lines or self.app.size.width < NARROW

    def on_mount(self) -> None:
        """Focus the list, so that the arrow keys work at once, and highlight the current value."""
        self.set_class(self._is_narrow(), "-narrow")
        values = [entry.value for entry in self._entries]
        options = self.query_one(OptionList)
        first = next((i for i, value in enumerate(values) if value), 0)
        options.highlighted = values.index(self._chosen) if self._chosen in values else first
        options.focus()

    @on(OptionList.OptionHighlighted)
    def describe(self, event: OptionList.OptionHighlighted) -> None:
        """Describe the highlighted entry."""
        self.query_one(DetailsPanel).value = self._entries[event.option_index].value

    @on(OptionList.OptionSelected)
    def take(self, event: OptionList.OptionSelected) -> None:
        """Choose by ⏎ or click."""
        self.dismiss(self._entries[event.option_index].value)

    def action_cursor(self, by: int) -> None:
        """Move the cursor."""
        options = self.query_one(OptionList)
        if by > 0:
            options.action_cursor_down()
        else:
            options.action_cursor_up()

    def action_cancel(self) -> None:
        """Dismiss without a choice."""
        self.dismiss(None)
