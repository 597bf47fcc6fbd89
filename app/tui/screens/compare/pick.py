"""Pick several items, such as runs or metrics: space marks, ⏎ confirms, / searches."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.reactive import reactive
from textual.widgets import Input

from app.text.safe_text import cell_len, pad
from app.tui.looks.colours import style
from app.tui.textual_private.screens import Dialog
from app.tui.widgets.field import Field
from app.tui.widgets.panel import Line, Panel


@dataclass(frozen=True, slots=True)
class Item:
    """An item to pick, with its description."""

    value: str
    text: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Picked:
    """The marked items in the order of marking, and the item under the cursor."""

    marks: tuple[str, ...]
    cursor: str


@dataclass(frozen=True, slots=True)
class Picking:
    """The state of the list."""

    items: tuple[Item, ...] = ()
    marks: tuple[str, ...] = ()
    cursor: int = 0
    filter: str = ""

    @property
    def shown(self) -> tuple[Item, ...]:
        """The items that contain every search word."""
        words = self.filter.casefold().split()
        return tuple(
            item for item in self.items
            if all(word in f"{item.text} {item.note} {item.value}".casefold() for word in words)
        )  # fmt: skip

    @property
    def chosen(self) -> Item | None:
        """The item under the cursor."""
        shown = self.shown
        return shown[min(self.cursor, len(shown) - 1)] if shown else None

    def moved(self, by: int) -> "Picking":
        """Move the cursor."""
        last = max(0, len(self.shown) - 1)
        place = max(0, min(last, min(self.cursor, last) + by))
        return Picking(self.items, self.marks, place, self.filter)

    def toggled(self) -> "Picking":
        """Mark or unmark the item under the cursor, then move down."""
        chosen = self.chosen
        if chosen is None:
            return self
        marks = tuple(mark for mark in self.marks if mark != chosen.value)
        if len(marks) == len(self.marks):
            marks = (*self.marks, chosen.value)
        return Picking(self.items, marks, self.cursor, self.filter).moved(1)

    def filtered(self, text: str) -> "Picking":
        """Show only items that match the text."""
        return Picking(self.items, self.marks, 0, text)


@dataclass
class ItemPicked(Message):
    """A line was clicked; `twice` means a double click, which confirms."""

    place: int
    twice: bool


class PickList(Panel):
    """The items, one per line."""

    picking: reactive[Picking] = reactive(Picking)
    framed: ClassVar[bool] = False

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._first = 0

    def paint(self, width: int, height: int) -> list[Line]:
        picking, palette = self.picking, self.palette
        shown = picking.shown
        if not shown:
            return [[(" nothing matches", style(palette.label))]]
        here = min(picking.cursor, len(shown) - 1)
        self._first = max(0, min(max(min(self._first, here), here - height + 1),
                                 len(shown) - height))  # fmt: skip
        size = min(max(cell_len(item.text) for item in shown) + 2, width // 2)
        lines: list[Line] = []
        for place, item in enumerate(shown[self._first : self._first + height], self._first):
            back = palette.cursor if place == here else palette.paper
            marked = item.value in picking.marks
            lines.append([
                (" ✓ " if marked else "   ", style(palette.accent, back, bold=True)),
                (pad(item.text, size), style(palette.headline if marked else palette.text, back)),
                (pad(item.note, max(0, width - size - 3)), style(palette.label, back)),
            ])  # fmt: skip
        return lines

    def on_click(self, event: events.Click) -> None:
        """Move to the clicked line and mark it; a double click confirms."""
        self.post_message(ItemPicked(event.offset.y + self._first, event.chain > 1))


class Picker(Dialog[Picked | None]):
    """A list to pick from; returns None if dismissed."""

    DEFAULT_CSS = """
    Picker { align: center middle; }
    Picker > Vertical {
        width: 100; max-width: 96%; height: 80%; border: round $border; background: $background;
        border-title-color: $headline; border-subtitle-color: $text-muted; padding: 0 1;
    }
    Picker PickList { height: 1fr; }
    Picker Input { border: none; height: 1; padding: 0; background: $panel; }
    Picker Input:focus { border: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "move(1)", "down", id="pick.down", show=False, tooltip="Next line"),
        Binding("up,k", "move(-1)", "up", id="pick.up", show=False, tooltip="Line above"),
        Binding("pagedown", "move(15)", "page down", id="pick.page_down", show=False,
                tooltip="Fifteen lines down"),
        Binding("pageup", "move(-15)", "page up", id="pick.page_up", show=False,
                tooltip="Fifteen lines up"),
        Binding("space", "mark", "mark", id="pick.mark", tooltip="Mark or unmark"),
        Binding("enter", "take", "take", id="pick.take", tooltip="Use the marked ones"),
        Binding("slash", "filter", "search", id="pick.search", tooltip="Search the list"),
        Binding("escape,q", "leave", "cancel", id="pick.leave", tooltip="Change nothing"),
    ]  # fmt: skip

    def __init__(self, title: str, items: Sequence[Item], marks: Sequence[str], hint: str) -> None:
        super().__init__()
        self._title, self._hint = title, hint
        self._picking = Picking(tuple(items), tuple(marks))

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = self._title
            box.border_subtitle = self._hint
            yield PickList()
            yield Field(placeholder="/ search")

    def on_mount(self) -> None:
        """Focus the list first."""
        self._list.picking = self._picking
        self._list.focus()

    @property
    def _list(self) -> PickList:
        return self.query_one(PickList)

    def action_move(self, by: int) -> None:
        self._list.picking = self._list.picking.moved(by)

    def action_mark(self) -> None:
        """Mark or unmark the item."""
        self._list.picking = self._list.picking.toggled()

    def action_filter(self) -> None:
        """Focus the search field."""
        self.query_one(Input).focus()

    def action_take(self) -> None:
        """Return the marked items."""
        picking = self._list.picking
        self.dismiss(Picked(picking.marks, picking.chosen.value if picking.chosen else ""))

    def action_leave(self) -> None:
        """From the field, return to the list; from the list, close without a change."""
        if self.query_one(Input).has_focus:
            self._list.focus()
        else:
            self.dismiss(None)

    @on(Input.Changed)
    def search(self, event: Input.Changed) -> None:
        """Keep only items that match the text."""
        self._list.picking = self._list.picking.filtered(event.value)

    @on(Input.Submitted)
    def keep(self) -> None:
        """Return to the list and keep the search."""
        self._list.focus()

    @on(ItemPicked)
    def pick(self, message: ItemPicked) -> None:
        picking = self._list.picking
        self._list.picking = picking.moved(message.place - picking.cursor).toggled().moved(-1)
        if message.twice:
            self.action_take()
