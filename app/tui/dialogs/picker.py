"""Picker: a list of items in columns, filtered as one types, to choose one or to mark several."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from textual import events, on, work
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.reactive import reactive
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from grpo_engine.metrics import METRICS, spec
from grpo_tui.app.text.safe_text import cell_len, pad, safe
from grpo_tui.app.tui.dialogs.dialog import Dialog
from grpo_tui.app.tui.keys import bindings
from grpo_tui.app.tui.widgets.field import Field
from grpo_tui.app.tui.widgets.panel import BarPanel, Line, paragraph
from grpo_tui.experiments.errors import StoreError

WIDTH = 164  # at most
NOTE_LINES = 3  # below the list
FRAME_ROWS = 5  # border, hint, field, and a line above the details


@dataclass(frozen=True, slots=True)
class PickerItem:
    """One line of the list."""

    value: str
    columns: tuple[str, ...]
    also: str = ""  # more words by which the filter finds it
    bad: bool = False

    def matches(self, terms: Sequence[str]) -> bool:
        """Whether it has all the words."""
        text = " ".join((*self.columns, self.also)).casefold()
        return all(term in text for term in terms)


def metric_items(keys: Iterable[str]) -> list[PickerItem]:
    """Metrics to choose from in their usual order, found by everyday words as well."""
    return [
        PickerItem(key, (spec(key).label, f"{key} · {spec(key).help}"), also=spec(key).also)
        for key in sorted(keys, key=[*METRICS, *keys].index)
    ]


@dataclass(frozen=True, slots=True)
class PickerResult:
    """The highlighted item, and the marked ones in the order of marking."""

    value: str
    marks: tuple[str, ...] = ()


Find = Callable[[str], Awaitable[Sequence[PickerItem]]]  # the items for a text
Details = Callable[[str, int], list[Line]]
Turn = Callable[[str, int], None]  # changes what belongs to an item, forwards or backwards


class DetailsPanel(BarPanel):
    """The description of the highlighted item, or all of its last column."""

    item: reactive[PickerItem | None] = reactive(None)

    def __init__(self, details: Details | None) -> None:
        super().__init__()
        self._details = details

    def paint(self, width: int, height: int) -> list[Line]:
        item = self.item
        if item is None:
            return []
        if self._details is None:
            return paragraph(item.columns[-1], width, height, "text")
        lines = self._details(item.value, width)
        return [*lines[: height - 1], [("…", "")]] if len(lines) > height > 0 else lines


class Picker(Dialog[PickerResult | None]):
    """Return what is picked, or None if dismissed; any key that is not its own filters the list.

    With `marks`, several items can be marked, and none if `optional`. The cursor begins on an item
    that is marked, or with `adds` on one that is not.
    """

    DEFAULT_CSS = """
    Picker { align: center middle; }
    Picker > Vertical {
        width: 164; max-width: 96%; max-height: 90%; padding: 0 1;
        border: round $border; background: $background; border-title-color: $headline;
        border-subtitle-color: $text-muted;
    }
    Picker Static { color: $text-muted; width: 100%; }
    Picker OptionList {
        height: 1fr; border: none; background: $background; padding: 0;
        scrollbar-size-vertical: 1; scrollbar-gutter: stable;
        text-wrap: nowrap; text-overflow: ellipsis;
    }
    Picker OptionList:focus { border: none; background-tint: transparent 0%; }
    Picker DetailsPanel { margin-top: 1; }
    Picker Field { border: none; height: 1; padding: 0; background: $panel; }
    Picker Field:focus { border: none; }
    """
    BINDINGS = bindings("picker")

    def __init__(
        self,
        title: str,
        items: Sequence[PickerItem] | Find,
        *,
        verb: str = "choose",
        hint: str = "",
        cursor: str = "",
        marks: Sequence[str] | None = None,
        details: Details | None = None,
        optional: bool = False,
        adds: bool = False,
        turn: Turn | None = None,
    ) -> None:
        super().__init__()
        self._title, self._hint, self._verb = title, hint, verb
        self._all, self._cursor = items, cursor
        self._details, self._optional, self._adds = details, optional, adds
        self._several, self._turn = marks is not None, turn
        self._first_marks = self.marks = tuple(marks or ())
        self.items: Sequence[PickerItem] = ()  # those that match

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = self._title
            several = "space mark   ctrl+a all   " if self._several else ""
            box.border_subtitle = f"{several}⏎ {self._verb}   esc cancel"
            if self._hint:
                yield Static(safe(self._hint), markup=False)
            yield OptionList()
            yield DetailsPanel(self._details)
            yield Field(placeholder="type to filter", select_on_focus=False)

    async def on_mount(self) -> None:
        """Focus the list and highlight the current item; make the dialog as high as all needs."""
        self.query_one(OptionList).focus()
        await self._search("")
        rows = self.app.size.height * 2 // 5 if self._details else NOTE_LINES
        self.query_one(DetailsPanel).styles.height = rows
        self.query_one(Vertical).styles.height = len(self.items) + rows + FRAME_ROWS

    def check_action(self, action: str, parameters: tuple[Any, ...]) -> bool | None:
        """Marks are offered only where several items can be picked, turning where it is known."""
        if action == "move" and parameters[1]:
            return self._turn is not None
        return self._several or action not in ("mark", "mark_all")

    # -- the list ---------------------------------------------------------------------------

    @property
    def item(self) -> PickerItem | None:
        """The highlighted item."""
        index = self.query_one(OptionList).highlighted
        return self.items[index] if index is not None and self.items else None

    def _widths(self) -> list[int]:
        """The width of each column without the space after it; the last one has what is left."""
        # in the frame, beside the sign and the scroll bar
        left = min(WIDTH, int(self.app.size.width * 0.96)) - 7
        widths = []
        for column in list(zip(*(item.columns for item in self.items), strict=True))[:-1]:
            longest = max(cell_len(safe(text)) for text in column) + 1
            widths.append(min(longest, left * 2 // 5) - 1)
        return [*widths, left - sum(widths) - len(widths)]

    def _prompt(self, item: PickerItem, widths: Sequence[int]) -> Content:
        sign = "✗ " if item.bad else "✓ " if item.value in self.marks else "  "
        cells = [
            (" " * bool(column) + pad(text, width), "$foreground" if column else "bold $headline")
            for column, (text, width) in enumerate(zip(item.columns, widths, strict=False))
        ]
        return Content.assemble((sign, "bold $accent"), *cells)

    async def _search(self, text: str) -> None:
        """List the items that match."""
        empty = "nothing matches"
        terms = text.casefold().split()
        try:
            self.items = (
                await self._all(text)
                if callable(self._all)
                else [item for item in self._all if item.matches(terms)]
            )
        except StoreError as error:
            self.items, empty = (), str(error)
        options, widths = self.query_one(OptionList), self._widths()
        options.set_options(
            [Option(self._prompt(item, widths)) for item in self.items]
            or [Option(Content.styled(safe(empty), "$text-muted"), disabled=True)]
        )
        values = [item.value for item in self.items]
        order = [self._cursor, *self.marks, *values]
        order = [value for value in order if not (self._adds and value in self.marks)]
        first = next((value for value in (*order, *values) if value in values), None)
        options.highlighted = values.index(first) if first is not None else None
        self.query_one(DetailsPanel).item = self.item

    @on(Input.Changed)
    @work(exclusive=True)
    async def search(self, event: Input.Changed) -> None:
        """Keep only the items that match the text."""
        await self._search(event.value)

    @on(OptionList.OptionHighlighted)
    def describe(self) -> None:
        """Describe the highlighted item."""
        self.query_one(DetailsPanel).item = self.item

    # -- keys and clicks --------------------------------------------------------------------

    def _mark(self, marks: Sequence[str]) -> None:
        self.marks = tuple(marks)
        options, widths = self.query_one(OptionList), self._widths()
        for index, item in enumerate(self.items):
            options.replace_option_prompt_at_index(index, self._prompt(item, widths))

    def action_mark(self) -> None:
        """Mark or unmark the item."""
        value = self.item.value if self.item else None
        if value in self.marks:
            self._mark([mark for mark in self.marks if mark != value])
        elif value is not None:
            self._mark([*self.marks, value])

    def action_mark_all(self) -> None:
        """Mark every listed item; if all are marked, unmark them."""
        listed = [item.value for item in self.items]
        unlisted = [mark for mark in self.marks if mark not in listed]
        is_all = len(self.marks) == len(unlisted) + len(listed)
        self._mark(unlisted if is_all else [*dict.fromkeys((*self.marks, *listed))])

    def action_choose(self) -> None:
        """Return the marked items, or the highlighted one as well if no mark was changed."""
        item, marks = self.item, self.marks
        value = item.value if item else ""
        unchanged = set(marks) == set(self._first_marks) or not (marks or self._optional)
        if item is None and unchanged:
            return
        if item and self._several and unchanged:
            marks = tuple(dict.fromkeys((*marks, value)))
        self.dismiss(PickerResult(value, marks))

    async def action_move(self, rows: int, columns: int) -> None:
        """Move the cursor, also from the field; sideways, change what belongs to the item."""
        if columns and self._turn is not None:
            if self.item is not None:
                self._cursor = self.item.value
                self._turn(self._cursor, columns)
                await self._search(self.query_one(Field).value)
            return
        options = self.query_one(OptionList)
        options.focus()
        (options.action_cursor_down if rows > 0 else options.action_cursor_up)()

    @on(OptionList.OptionSelected)
    def click(self) -> None:
        """Mark the clicked item, or choose it where one is chosen."""
        if self._several:
            self.action_mark()
        else:
            self.action_choose()

    def on_key(self, event: events.Key) -> None:
        """Type into the field."""
        typed = (event.character or "").strip() if event.is_printable else ""
        if typed and event.key not in self.active_bindings:
            event.stop()
            event.prevent_default()
            self.action_filter()
            self.query_one(Field).insert_text_at_cursor(typed)

    def action_filter(self) -> None:
        """Focus the field; at once, for a key that is typed meanwhile."""
        self.set_focus(self.query_one(Field))

    def action_leave(self) -> None:
        """End the filter; without one, close and change nothing."""
        field = self.query_one(Field)
        if field.has_focus or field.value:
            field.value = ""
            self.query_one(OptionList).focus()
        else:
            self.dismiss(None)
