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
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from grpo_tui.app.text.safe_text import cell_len, clip, safe
from grpo_tui.app.tui.dialogs.choices import Filtered
from grpo_tui.app.tui.looks.colours import Palette
from grpo_tui.app.tui.screens.base import NARROW
from grpo_tui.app.tui.widgets.field import Field
from grpo_tui.app.tui.widgets.panel import Line, Panel

Details = Callable[[str, int, Palette], list[Line]]
NAMES, WIDTH = 40, 164  # at least and at most


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


class Pick(Filtered[str]):
    """Return the chosen value, or None if dismissed; with `lines`, notes may be a line long."""

    DEFAULT_CSS = """
    Pick > Vertical {
        width: 164; max-width: 96%; height: 40; max-height: 90%; padding: 0 1;
        border: round $border; background: $background; border-title-color: $headline;
        border-subtitle-color: $text-muted;
    }
    Pick Static { color: $text-muted; width: 100%; }
    Pick OptionList {
        height: 1fr; border: none; background: $background; padding: 0;
        scrollbar-size-vertical: 1;
    }
    Pick OptionList:focus { border: none; background-tint: transparent 0%; }
    Pick DetailsPanel { margin-left: 2; }
    Pick.-narrow OptionList { width: 1fr; height: auto; max-height: 50%; }
    Pick.-narrow Horizontal { layout: vertical; }
    Pick.-narrow DetailsPanel { width: 1fr; height: 1fr; margin: 1 0 0 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "cancel", id="new.pick_cancel",
                tooltip="End the filter, or change nothing"),
        Binding("slash", "filter", "filter", id="pick.search",
                tooltip="Filter the list, as typing does"),
        Binding("down", "cursor('down')", "down", id="new.pick_down", show=False,
                tooltip="The next one"),
        Binding("up", "cursor('up')", "up", id="new.pick_up", show=False, tooltip="The one above"),
    ]  # fmt: skip

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
            box.border_subtitle = "↑↓ browse   ⏎ choose   esc cancel"
            yield Static(safe(self._hint), markup=False)
            with Horizontal():
                yield OptionList()
                yield DetailsPanel(self._details)
            yield Field(placeholder="type to filter", select_on_focus=False)

    def _option(self, entry: Entry) -> Option:
        if not entry.value:
            return Option(Content.styled(safe(entry.label), "$text-muted"), disabled=True)
        room = self._room
        name = clip(f"✗ {entry.label}" if entry.bad else entry.label, room)
        if entry.note:
            longest = max(cell_len(one.label) for one in self._entries if one.note)
            name += " " * (min(room // 2, longest + 2) - cell_len(name))
        note = clip(entry.note, room - cell_len(name) - 1)
        return Option(Content.assemble((f"{name} ", "bold $headline"), (note, "$foreground")),
                      id=entry.value)  # fmt: skip

    def _is_narrow(self) -> bool:
        """Whether the description is below the list."""
        return self._whole_lines or self.app.size.width < NARROW

    @property
    def _width(self) -> int:
        return min(WIDTH, int(self.app.size.width * 0.96))

    @property
    def _room(self) -> int:
        """Cells of an entry: two fifths where the description is beside the list."""
        return self._width - 8 if self._is_narrow() else max(NAMES, (self._width - 6) * 2 // 5 - 4)

    def on_mount(self) -> None:
        """Focus the list, so that the arrow keys work at once, and highlight the current value."""
        self.set_class(self._is_narrow(), "-narrow")
        if not self._is_narrow():
            self.query_one(OptionList).styles.width = self._room + 4
        if self._whole_lines:  # few entries: no higher than they and the longest description need
            palette, count = self.query_one(DetailsPanel).palette, len(self._entries)
            told = [self._details(one.value, self._width - 6, palette) for one in self._entries]
            room = max(count + 1 + max(map(len, told)), 2 * count)  # the list gets half at most
            self.query_one(Vertical).styles.height = room + 4
        self._show(self._entries)
        self.query_one(OptionList).focus()

    def _show(self, entries: Sequence[Entry]) -> None:
        """List these, with the current value highlighted, or else the first."""
        options = self.query_one(OptionList)
        options.set_options(map(self._option, entries or [Entry("", "nothing matches")]))
        values = [entry.value for entry in entries]
        first = next((i for i, value in enumerate(values) if value), None)
        options.highlighted = values.index(self._chosen) if self._chosen in values else first
        if first is None:
            self.query_one(DetailsPanel).value = ""

    @on(Input.Changed)
    def find(self, event: Input.Changed) -> None:
        """Keep only the entries with all words of the text."""
        words = event.value.casefold().split()
        found = [
            one for one in self._entries
            if one.value and all(w in f"{one.label} {one.note}".casefold() for w in words)
        ]  # fmt: skip
        self._show(found if words else self._entries)

    @on(OptionList.OptionHighlighted)
    def describe(self, event: OptionList.OptionHighlighted) -> None:
        """Describe the highlighted entry."""
        self.query_one(DetailsPanel).value = event.option.id or ""

    @on(OptionList.OptionSelected)
    def take(self, event: OptionList.OptionSelected) -> None:
        """Choose by ⏎ or click."""
        self.dismiss(event.option.id)

    @on(Input.Submitted)
    def take_found(self) -> None:
        """Take the line under the cursor, as from the list."""
        self.query_one(OptionList).action_select()

    async def action_cursor(self, to: str) -> None:
        """Move the cursor, also from the field."""
        options = self.query_one(OptionList)
        options.focus()
        await options.run_action(f"cursor_{to}")
