"""Picker: a list of items in columns, filtered as one types, to choose one or to mark several."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from grpo_engine.metrics import METRICS, spec
from grpo_tui.app.text.safe_text import cell_len, pad, safe
from grpo_tui.app.tui.keys import bind, hidden
from grpo_tui.app.tui.textual_private.screens import Dialog
from grpo_tui.app.tui.widgets.field import Field
from grpo_tui.app.tui.widgets.panel import Bar, Line, paragraph
from grpo_tui.experiments.errors import StoreError

T = TypeVar("T")
WIDTH = 164  # at most
LIST_WIDTH = 40  # of a list with details beside it, at least
SPLIT = 110  # cells of a terminal in which details are beside the list
NOTE_LINES, DETAIL_LINES = 3, 9  # below the list
FRAME_ROWS = 5  # border, hint, field, and a line above the details


class Filtered(Dialog[T | None], Generic[T]):
    """A dialog whose content is filtered by a field: any key that is not the dialog's own types."""

    DEFAULT_CSS = """
    Filtered { align: center middle; }
    Filtered Field { border: none; height: 1; padding: 0; background: $panel; }
    Filtered Field:focus { border: none; }
    """
    content: ClassVar[type[Widget]] = OptionList  # what has the focus while nothing is typed

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
            self.query_one(self.content).focus()
        else:
            self.dismiss(None)


@dataclass(frozen=True, slots=True)
class Item:
    """One line of the list; without a value it is a heading."""

    value: str | None
    columns: tuple[str, ...]
    also: str = ""  # more words by which the filter finds it
    bad: bool = False

    def matches(self, words: Sequence[str]) -> bool:
        """Whether it has all the words; headings match nothing but an empty filter."""
        text = " ".join((*self.columns, self.also)).casefold()
        return all(word in text for word in words) and not (words and self.value is None)


def metric_items(keys: Iterable[str]) -> list[Item]:
    """Metrics to choose from in their usual order, found by everyday words as well."""
    return [Item(key, (spec(key).label, f"{key} · {spec(key).help}"), also=spec(key).also)
            for key in sorted(keys, key=[*METRICS, *keys].index)]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Picked:
    """The highlighted item, and the marked ones in the order of marking."""

    value: str
    marks: tuple[str, ...] = ()


Find = Callable[[str], Awaitable[Sequence[Item]]]  # the items for a text
Details = Callable[[str, int], list[Line]]


class DetailsPanel(Bar):
    """The description of the highlighted item, or all of its last column."""

    item: reactive[Item | None] = reactive(None)

    def __init__(self, details: Details | None) -> None:
        super().__init__()
        self._details = details

    def paint(self, width: int, height: int) -> list[Line]:
        item = self.item
        if item is None or item.value is None:
            return []
        if self._details is None:
            return paragraph(item.columns[-1], width, height, "text")
        lines = self._details(item.value, width)
        return [*lines[: height - 1], [("…", "")]] if len(lines) > height > 0 else lines


class Picker(Filtered[Picked]):
    """Return what is picked, or None if dismissed.

    With `marks`, several items can be marked, and none if `optional`. The cursor begins on an item
    that is marked, or with `adds` on one that is not.
    """

    DEFAULT_CSS = """
    Picker > Vertical {
        width: 164; max-width: 96%; height: 40; max-height: 90%; padding: 0 1;
        border: round $border; background: $background; border-title-color: $headline;
        border-subtitle-color: $text-muted;
    }
    Picker Static { color: $text-muted; width: 100%; }
    Picker OptionList {
        width: 1fr; height: 1fr; border: none; background: $background; padding: 0;
        scrollbar-size-vertical: 1;
    }
    Picker OptionList:focus { border: none; background-tint: transparent 0%; }
    Picker DetailsPanel { margin-left: 2; }
    Picker.-below Horizontal { layout: vertical; }
    Picker.-below DetailsPanel { width: 1fr; margin: 1 0 0 0; }
    """
    BINDINGS: ClassVar = [
        bind("space", "mark", "mark", "pick.mark", "Mark or unmark"),
        bind("ctrl+a", "mark_all", "mark all", "pick.all", "Mark all that are listed, or none"),
        Binding("enter", "choose", "choose", id="pick.take", priority=True,
                tooltip="Use the marked ones; without a mark, the line under the cursor"),
        bind("slash", "filter", "filter", "pick.search", "Filter the list, as typing does"),
        bind("escape", "leave", "cancel", "pick.leave", "End the filter, or change nothing"),
        hidden("down", "move(1, 0)", "down", "move.down", "Next line"),
        hidden("up", "move(-1, 0)", "up", "move.up", "Line above"),
    ]  # fmt: skip

    def __init__(
        self, title: str, items: Sequence[Item] | Find, *, verb: str = "choose", hint: str = "",
        cursor: str = "", marks: Sequence[str] | None = None, details: Details | None = None,
        optional: bool = False, adds: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self._title, self._hint, self._verb = title, hint, verb
        self._all, self._cursor = items, cursor
        self._details, self._optional, self._adds = details, optional, adds
        self._several = marks is not None
        self._first_marks = self.marks = tuple(marks or ())
        self.items: Sequence[Item] = ()  # those that match

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = self._title
            several = "space mark   ctrl+a all   " if self._several else ""
            box.border_subtitle = f"{several}⏎ {self._verb}   esc cancel"
            if self._hint:
                yield Static(safe(self._hint), markup=False)
            with Horizontal():
                yield OptionList()
                yield DetailsPanel(self._details)
            yield Field(placeholder="type to filter", select_on_focus=False)

    async def on_mount(self) -> None:
        """Focus the list and highlight the current item, or the first marked one."""
        self.query_one(OptionList).focus()
        await self._search("")
        self._fit()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Marks are offered only where several items can be picked."""
        if action in ("mark", "mark_all") and not self._several:
            return False
        return super().check_action(action, parameters)

    # -- the list ---------------------------------------------------------------------------

    @property
    def item(self) -> Item | None:
        """The highlighted item."""
        index = self.query_one(OptionList).highlighted
        return self.items[index] if index is not None and self.items else None

    @property
    def _beside(self) -> bool:
        """Whether there are details, and room for them beside the list."""
        return self._details is not None and self.app.size.width >= SPLIT

    @property
    def _list_width(self) -> int:
        width = min(WIDTH, int(self.app.size.width * 0.96)) - 4
        return max(LIST_WIDTH, width * 2 // 5) if self._beside else width

    def _fit(self) -> None:
        """Make the list as wide as it is beside details, or the dialog as high as all needs."""
        panel = self.query_one(DetailsPanel)
        self.set_class(not self._beside, "-below")
        if self._beside:
            self.query_one(OptionList).styles.width = self._list_width
            return
        rows = NOTE_LINES if self._details is None else DETAIL_LINES
        panel.styles.height = rows
        self.query_one(Vertical).styles.height = len(self.items) + rows + FRAME_ROWS

    def _widths(self) -> list[int]:
        """The width of each column without the space after it; the last one has what is left."""
        rows = [item.columns for item in self.items if item.value is not None]
        left = self._list_width - 3  # beside the sign and the scroll bar
        widths = []
        for column in list(zip(*rows, strict=True))[:-1]:
            longest = max(cell_len(safe(text)) for text in column) + 1
            widths.append(min(longest, left * 2 // 5) - 1)
        return [*widths, left - sum(widths) - len(widths)]

    def _prompt(self, item: Item, widths: Sequence[int]) -> Content:
        if item.value is None:
            return Content.styled(safe(item.columns[0]), "$text-muted")
        sign = "✗ " if item.bad else "✓ " if item.value in self.marks else "  "
        cells = [
            (f"{pad(text, width)} ", "$foreground" if column else "bold $headline")
            for column, (text, width) in enumerate(zip(item.columns, widths, strict=False))
        ]
        return Content.assemble((sign, "bold $accent"), *cells)

    @work(exclusive=True)
    async def _search_again(self, text: str) -> None:
        await self._search(text)

    async def _search(self, text: str) -> None:
        """List the items that match."""
        empty = "nothing matches"
        words = text.casefold().split()
        try:
            self.items = (
                await self._all(text)
                if callable(self._all)
                else [item for item in self._all if item.matches(words)]
            )
        except StoreError as error:
            self.items, empty = (), str(error)
        options, widths = self.query_one(OptionList), self._widths()
        options.set_options(
            [Option(self._prompt(item, widths), id=item.value, disabled=item.value is None)
             for item in self.items]
            or [Option(Content.styled(safe(empty), "$text-muted"), disabled=True)]
        )  # fmt: skip
        values = [item.value for item in self.items]
        known = [value for value in values if value is not None]
        order = [self._cursor, *self.marks, *known]
        order = [value for value in order if not (self._adds and value in self.marks)]
        first = next((value for value in (*order, *known) if value in known), None)
        options.highlighted = values.index(first) if first is not None else None
        self.query_one(DetailsPanel).item = self.item

    @on(Input.Changed)
    def search(self, event: Input.Changed) -> None:
        """Keep only the items that match the text."""
        self._search_again(event.value)

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
        listed = [item.value for item in self.items if item.value is not None]
        others = [mark for mark in self.marks if mark not in listed]
        is_all = len(self.marks) == len(others) + len(listed)
        self._mark(others if is_all else [*dict.fromkeys((*self.marks, *listed))])

    def action_choose(self) -> None:
        """Return the marked items, or the highlighted one as well if no mark was changed."""
        item, marks = self.item, self.marks
        value = (item.value if item else None) or ""
        unchanged = set(marks) == set(self._first_marks) or not (marks or self._optional)
        if item is None and unchanged:
            return
        if item and self._several and unchanged:
            marks = tuple(dict.fromkeys((*marks, value)))
        self.dismiss(Picked(value, marks))

    def action_move(self, rows: int, _columns: int) -> None:
        """Move the cursor, also from the field."""
        options = self.query_one(OptionList)
        options.focus()
        if rows > 0:
            options.action_cursor_down()
        else:
            options.action_cursor_up()

    @on(OptionList.OptionSelected)
    def click(self) -> None:
        """Mark the clicked item, or choose it where one is chosen."""
        if self._several:
            self.action_mark()
        else:
            self.action_choose()

    def on_click(self, event: events.Click) -> None:
        """A double click takes."""
        if event.chain == 2 and self._several and "option" in event.style.meta:
            self.action_choose()
