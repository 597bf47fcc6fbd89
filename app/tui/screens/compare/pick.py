"""Pick several items, such as runs or metrics: space marks, ⏎ confirms, typing filters."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.reactive import reactive
from textual.widgets import Input

from grpo_tui.app.text.comparison import NO_SWEEP
from grpo_tui.app.text.safe_text import cell_len, pad, wrap
from grpo_tui.app.tui.dialogs.choices import Filtered
from grpo_tui.app.tui.looks.colours import style
from grpo_tui.app.tui.widgets.field import Field
from grpo_tui.app.tui.widgets.panel import Line, Panel
from grpo_tui.experiments.errors import StoreError

SWEEP_HINT = "* its sweep   "  # where an item is part of one
NOTE_LINES = 3  # of the note under the cursor, where lines have no room for notes


@dataclass(frozen=True, slots=True)
class Item:
    """An item to pick, with its description and what it is one of several of."""

    value: str
    text: str
    note: str = ""
    sweep: int | None = None


@dataclass(frozen=True, slots=True)
class Picked:
    """The marked items in the order of marking, and the item under the cursor.

    It is one of them if no mark was changed.
    """

    marks: tuple[str, ...]
    cursor: str


@dataclass(frozen=True, slots=True)
class Picking:
    """The state of the list."""

    shown: tuple[Item, ...] = ()
    marks: tuple[str, ...] = ()
    cursor: int = 0
    problem: str = ""

    @property
    def chosen(self) -> Item | None:
        """The item under the cursor."""
        return self.shown[self.cursor] if self.shown else None

    def moved(self, by: int) -> "Picking":
        """Move the cursor."""
        last = max(0, len(self.shown) - 1)
        return replace(self, cursor=max(0, min(last, self.cursor + by)))

    def toggled(self) -> "Picking":
        """Mark or unmark the item under the cursor, then move down."""
        value = self.chosen.value if self.chosen else None
        kept = tuple(mark for mark in self.marks if mark != value)
        if value is not None and len(kept) == len(self.marks):
            kept = (*kept, value)
        return replace(self, marks=kept).moved(1)

    def all_marked(self) -> "Picking":
        """Mark every item that is listed; if all are, none."""
        values = tuple(item.value for item in self.shown)
        if set(values) <= set(self.marks):
            return replace(self, marks=tuple(mark for mark in self.marks if mark not in values))
        return replace(self, marks=tuple(dict.fromkeys((*self.marks, *values))))

    def swept(self) -> "Picking":
        """Mark the whole sweep of the item under the cursor and nothing else, or unmark it."""
        sweep = self.chosen.sweep if self.chosen else None
        values = [one.value for one in self.shown if sweep and one.sweep == sweep]
        if not values or set(values) == set(self.marks):
            return replace(self, marks=()) if values else self
        kept = [mark for mark in self.marks if mark in values]
        return replace(self, marks=tuple(dict.fromkeys((*kept, *values))))

    def showing(self, items: Sequence[Item]) -> "Picking":
        """Show other items, with the cursor on the first marked one."""
        marked = (at for at, item in enumerate(items) if item.value in self.marks)
        return replace(self, shown=tuple(items), cursor=next(marked, 0), problem="")


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
        self._first = self._end = 0  # the lines on screen

    def paint(self, width: int, height: int) -> list[Line]:
        picking, palette = self.picking, self.palette
        shown = picking.shown
        if picking.problem:
            return [[(part, style(palette.bad))] for part in wrap(picking.problem, width, height)]
        if not shown:
            return [[(" nothing matches", style(palette.label))]]
        here = picking.cursor
        size = min(max(cell_len(item.text) for item in shown) + 2, width // 2)
        room = max(0, width - size - 3)
        told: list[Line] = []
        if any(cell_len(item.note) > room for item in shown):  # the whole of one, below the list
            parts = wrap(shown[here].note, width, NOTE_LINES)
            told = [[(part, style(palette.text))] for part in ("", *parts)]
            height = max(1, height - NOTE_LINES - 1)
        self._first = max(0, min(max(min(self._first, here), here - height + 1),
                                 len(shown) - height))  # fmt: skip
        self._end = min(len(shown), self._first + height)
        lines: list[Line] = []
        for place, item in enumerate(shown[self._first : self._end], self._first):
            back = palette.cursor if place == here else palette.paper
            marked = item.value in picking.marks
            signs = ("▸" if place == here else " ") + ("✓ " if marked else "  ")
            front = palette.headline if marked or place == here else palette.text
            lines.append([
                (signs, style(palette.accent, back, bold=True)),
                (pad(item.text, size), style(front, back, bold=place == here)),
                (pad(item.note, room), style(palette.label, back)),
            ])  # fmt: skip
        return [*lines, *([] for _ in range(height - len(lines))), *told]

    def on_click(self, event: events.Click) -> None:
        """Move to the clicked line and mark it; a double click confirms."""
        if (place := event.offset.y + self._first) < self._end:
            self.post_message(ItemPicked(place, event.chain > 1))


class Picker(Filtered[Picked]):
    """A list to pick from; returns None if dismissed."""

    DEFAULT_CSS = """
    Picker > Vertical {
        width: 96%; max-width: 150; height: 80%; border: round $border; background: $background;
        border-title-color: $headline; border-subtitle-color: $text-muted; padding: 0 1;
    }
    Picker PickList { height: 1fr; }
    """
    content = PickList
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "move(1)", "down", id="pick.down", show=False, tooltip="Next line"),
        Binding("up", "move(-1)", "up", id="pick.up", show=False, tooltip="Line above"),
        Binding("pagedown", "move(15)", "page down", id="pick.page_down", show=False,
                tooltip="Fifteen lines down"),
        Binding("pageup", "move(-15)", "page up", id="pick.page_up", show=False,
                tooltip="Fifteen lines up"),
        Binding("home", "move(-1000000)", "first", id="pick.first", show=False,
                tooltip="The first line"),
        Binding("end", "move(1000000)", "last", id="pick.last", show=False,
                tooltip="The last line"),
        Binding("space", "mark", "mark", id="pick.mark",
                tooltip="Mark or unmark, and go to the next line"),
        Binding("plus", "mark_all", "mark all", id="pick.all", key_display="+",
                tooltip="Mark all that are listed, or none"),
        Binding("asterisk", "sweep", "sweep", id="pick.sweep", key_display="*",
                tooltip="Mark the sweep of the run under the cursor and no other runs; space adds"),
        Binding("enter", "take", "take", id="pick.take",
                tooltip="Use the marked ones; without a mark, the line under the cursor"),
        Binding("slash", "filter", "filter", id="pick.search",
                tooltip="Filter the list, as typing does; runs as on Runs"),
        Binding("escape", "leave", "cancel", id="pick.leave",
                tooltip="End the filter, or change nothing"),
    ]  # fmt: skip

    def __init__(
        self, title: str, find: Callable[[str], Awaitable[Sequence[Item]]], marks: Sequence[str],
        hint: str,
    ) -> None:  # fmt: skip
        super().__init__()
        self._title, self._find, self._hint = title, find, hint
        self._picking = Picking(marks=tuple(marks))

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = self._title
            yield PickList()
            yield Field(placeholder="type to filter", select_on_focus=False)

    async def on_mount(self) -> None:
        """Show all items and focus the list; keys pressed meanwhile wait."""
        self._list.picking = self._picking
        self._list.focus()
        await self._show("")

    async def _show(self, text: str) -> None:
        try:
            items = await self._find(text)
            self._list.picking = self._list.picking.showing(items)
            swept = SWEEP_HINT if any(item.sweep for item in items) else ""
            self.query_one(Vertical).border_subtitle = self._hint.replace(SWEEP_HINT, swept)
        except StoreError as error:
            self._list.picking = replace(self._list.picking, shown=(), problem=str(error))

    @property
    def _list(self) -> PickList:
        return self.query_one(PickList)

    def action_move(self, by: int) -> None:
        """Move the cursor, also from the field."""
        self._list.focus()
        self._list.picking = self._list.picking.moved(by)

    def action_mark(self) -> None:
        """Mark or unmark the item."""
        self._list.picking = self._list.picking.toggled()

    def action_sweep(self) -> None:
        """Mark the sweep of the item and nothing else, or unmark it."""
        chosen = self._list.picking.chosen
        if chosen and not chosen.sweep:
            self.notify(NO_SWEEP.format(chosen.text))
        self._list.picking = self._list.picking.swept()

    def action_mark_all(self) -> None:
        """Mark every listed item; if all are marked, unmark them."""
        self._list.picking = self._list.picking.all_marked()

    def action_take(self) -> None:
        """Return the marked items."""
        marks, chosen = self._list.picking.marks, self._list.picking.chosen
        if chosen and (not marks or set(marks) == set(self._picking.marks)):
            marks = tuple(dict.fromkeys((*marks, chosen.value)))
        self.dismiss(Picked(marks, chosen.value if chosen else ""))

    @on(Input.Changed)
    async def search(self, event: Input.Changed) -> None:
        """Keep only items that match the text, unless more was typed meanwhile."""
        if event.value == event.input.value:
            await self._show(event.value)

    @on(Input.Submitted)
    def take_found(self) -> None:
        """Take the line under the cursor, as from the list."""
        self.action_take()

    @on(ItemPicked)
    def pick(self, message: ItemPicked) -> None:
        picking = self._list.picking
        self._list.picking = picking.moved(message.place - picking.cursor).toggled().moved(-1)
        if message.twice:
            self.action_take()
