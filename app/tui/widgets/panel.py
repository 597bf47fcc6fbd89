"""Panel: the base class of all panels, drawn as lines; redraws only lines that changed.

A subclass stores its content in reactive attributes and implements `paint(width, height)`, which
returns the lines inside the frame as spans of (safe text, style). The top of the frame has the
panel's `title` on the left and `note` on the right; `paint` may set both. This class handles sizes,
focus and themes. It does not paint while the panel is hidden or its screen is inactive.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, ClassVar, Self

from rich.segment import Segment
from textual.color import Color
from textual.geometry import Offset, Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.selection import Selection
from textual.strip import Strip
from textual.widget import Widget

from grpo_tui.app.text.safe_text import cell_len, clip, pad, wrap
from grpo_tui.app.tui.keys import LAST, bindings
from grpo_tui.app.tui.looks.colours import style_named

Span = tuple[str, str]  # safe text, and its style: `bold headline on cursor`
Line = list[Span]

BASE = "text on paper"
BLACK = Color(0, 0, 0)  # no filter in use looks at the background


@lru_cache(maxsize=4096)
def strip_of(theme: str, line: tuple[Span, ...], width: int) -> Strip:
    """A line in the colours of a theme, padded to a width, or cut with `…` at its end."""
    base = style_named(theme, BASE)
    strip = Strip([Segment(text, base + style_named(theme, style)) for text, style in line if text])
    if strip.cell_length > width > 1:
        *first, last = strip.adjust_cell_length(width - 1)
        strip = Strip([*first, last, Segment("…", last.style)])
    return strip.adjust_cell_length(width, base)


@lru_cache(maxsize=1024)
def framed_strip(theme: str, line: tuple[Span, ...], width: int, edge: str) -> Strip:
    """A line between the sides of a frame.

    The same line gives the same strip, which keeps what Textual has made of it for the terminal.
    """
    side = strip_of(theme, (("│", edge),), 1)
    return Strip.join([side, strip_of(theme, line, width), side])


class Panel(Widget, can_focus=True):
    """A framed or frameless area of lines, whose cursor the arrows move while it has the focus."""

    DEFAULT_CSS = """
    Panel { width: 1fr; height: 1fr; background: $background; }
    """
    ALLOW_MAXIMIZE = True

    BINDINGS = bindings("panel")

    framed = True
    navigable = False  # whether the arrows act in it
    help_topic = ""  # the topic that explains it
    wheel = 3  # lines that the mouse wheel moves by

    @dataclass
    class Moved(Message):
        """The cursor of a panel is to move by so many rows and columns."""

        panel: "Panel"
        rows: int
        columns: int

        @property
        def control(self) -> "Panel":
            """The panel, for `@on` with a selector."""
            return self.panel

    class Opened(Message):
        """The item under the cursor of a panel is to be opened."""

    def check_action(self, action: str, _parameters: tuple[object, ...]) -> bool | None:
        """Leave the arrows to the screen where there is nothing to move."""
        return self.navigable or not action.startswith("move")

    def action_move(self, rows: int, columns: int) -> None:
        """Ask the screen to move the cursor; a panel that knows its lines moves it itself."""
        if self.navigable and (rows or columns):
            self.post_message(self.Moved(self, rows, columns))

    def action_move_page(self, by: int) -> None:
        """Move the cursor by what is visible."""
        self.action_move(by * self.page_rows, 0)

    def action_move_to_end(self, direction: int) -> None:
        """Move the cursor to the first or the last line."""
        self.action_move(direction * LAST, 0)

    @property
    def page_rows(self) -> int:
        """The lines or items that are visible, less one that stays in sight."""
        return max(1, self.inner.height - 1)

    def on_mouse_scroll_down(self) -> None:
        self.action_move(self.wheel, 0)

    def on_mouse_scroll_up(self) -> None:
        self.action_move(-self.wheel, 0)

    _top = 0  # the first visible line or item
    _strips: Sequence[Strip] = ()
    _painted_for: tuple[Size, str, bool] | None = None

    def __init__(self, title: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.title, self.note = title, ""

    # -- for subclasses ---------------------------------------------------------------------

    def paint(self, width: int, height: int) -> list[Line]:
        """Return the lines inside the frame; missing lines are blank, excess lines are cut."""
        raise NotImplementedError

    def topic(self) -> str:
        """The topic that `?` explains; empty for the screen."""
        return self.help_topic

    def copy_text(self) -> str:
        """The text that `y` copies."""
        return ""

    def note_first(self, *texts: str) -> None:
        """Take as the note the first text that fits beside the title."""
        space = self.size.width - cell_len(self.title) - 8
        self.note = next((text for text in texts if cell_len(text) <= space), "")

    @property
    def inner(self) -> Size:
        """The size inside the frame."""
        edge = 2 if self.framed else 0
        return Size(max(0, self.size.width - edge), max(0, self.size.height - edge))

    def inside(self, offset: Offset) -> Offset:
        """The position of a mouse event inside the frame."""
        return offset - Offset(1, 1) if self.framed else offset

    def around(self, lines: list[Line], selected: int, height: int) -> list[Line]:
        """The lines that fit, with the selected one; they move only as far as they must."""
        indices = visible([1] * len(lines), height, selected, top=self._top)
        self._top = indices.start
        return [lines[index] for index in indices]

    def refresh(
        self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False
    ) -> Self:
        """Redraw only the lines that differ; overrides Textual, called by reactives."""
        if regions or layout or recompose or not (repaint and self.is_attached):
            return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)
        if not self.size or not self.on_show():
            self._painted_for = None
            return self
        same, old = self._painted_for == self._key(), self._strips
        self._draw()
        if not same:
            return super().refresh()
        changed = [y for y, (a, b) in enumerate(zip(old, self._strips, strict=True)) if a != b]
        if changed:
            super().refresh(*(Region(0, y, self.size.width, 1) for y in changed))
        return self

    def catch_up(self) -> None:
        """Redraw if a redraw was asked for while the panel was out of sight."""
        if self._painted_for is None:
            self.refresh()

    def on_show(self) -> bool:
        """Whether the panel is visible."""
        return self.display and self.screen.is_current

    # -- drawing ----------------------------------------------------------------------------

    def _key(self) -> tuple[Size, str, bool]:
        return self.size, self.app.theme, self.has_focus_within

    def _draw(self) -> None:
        width, height = self.inner
        lines = self.paint(width, height)[:height] if width > 0 and height > 0 else []
        lines += [[]] * (height - len(lines))
        if self.framed:
            theme, edge = self.app.theme, self._frame_colour()
            inside = (framed_strip(theme, tuple(line), width, edge) for line in lines)
            strips = [self._frame_top(), *inside, self._frame_bottom()]
        else:
            strips = [self._strip(line, width) for line in lines]
        self._strips, self._painted_for = strips[: self.size.height], self._key()

    def _frame_colour(self) -> str:
        return "focus" if self.has_focus_within else "border"

    def _frame_top(self) -> Strip:
        line, width = self._frame_colour(), self.size.width
        left, right = [("╭─", line)], [("╮", line)]
        if title := clip(self.title, width - 6):
            left.append((f" {title} ", "bold headline" if self.has_focus_within else "label"))
        if (note := clip(self.note, width - cells(left) - 4)) not in ("", "…"):
            right = [(f" {note} ", "label"), ("─╮", line)]
        between = max(0, width - cells([*left, *right]))
        return self._strip([*left, ("─" * between, line), *right], width)

    def _frame_bottom(self) -> Strip:
        width = self.size.width
        return self._strip([(f"╰{'─' * (width - 2)}╯", self._frame_colour())], width)

    def _strip(self, line: Line, width: int) -> Strip:
        return strip_of(self.app.theme, tuple(line), width)

    def render_lines(self, crop: Region) -> list[Strip]:
        """Lines for the compositor; overrides Textual, whose borders and padding no panel has."""
        if self._painted_for != self._key():
            self._draw()
        selection = self.text_selection
        strips = [self._line(y, selection) for y in crop.line_range]
        for line_filter in self.get_line_filters():
            strips = [strip.apply_filter(line_filter, BLACK) for strip in strips]
        return [strip.crop(*crop.column_span) for strip in strips]

    def render_line(self, y: int) -> Strip:
        """One line with the offsets needed for selection by mouse; overrides Textual."""
        if self._painted_for != self._key():
            self._draw()
        return self._line(y, self.text_selection).apply_offsets(0, y)

    def _line(self, y: int, selection: Selection | None) -> Strip:
        if y >= len(self._strips):
            return self._strip([], self.size.width)
        strip = self._strips[y]
        if selection is not None and (span := selection.get_span(y)) is not None:
            start, end = span
            end = strip.cell_length if end == -1 else end
            marked = self.screen.get_component_rich_style("screen--selection")
            before, middle, after = strip.divide([start, end, strip.cell_length])
            strip = Strip.join([before, middle.apply_style(marked), after])
        return strip

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The selected text; overrides Textual."""
        return selection.extract("\n".join(strip.text for strip in self._strips)), "\n"

    def selection_updated(self, _selection: Selection | None) -> None:
        """Draw the selection; overrides Textual."""
        super().refresh()

    def on_descendant_focus(self) -> None:
        """Highlight the frame."""
        self.refresh()

    def on_descendant_blur(self) -> None:
        """Dim the frame."""
        self.refresh()


class ViewPanel(Panel):
    """A panel that draws the view of its screen."""

    view: reactive[Any]
    unseen: ClassVar[frozenset[str]] = frozenset()  # fields of the view that it does not draw

    def show_view(self, view: Any) -> bool:
        """Take another view; it is painted, and True returned, if a field differs that is drawn."""
        old, names = self.view, (item.name for item in fields(view))
        if any(getattr(old, n) is not getattr(view, n) for n in names if n not in self.unseen):
            self.view = view
            return True
        self.set_reactive(type(self).view, view)
        return False


class BarPanel(Panel, can_focus=False):
    """A line or some lines without a frame, which the keys never act in."""

    framed = False
    ALLOW_MAXIMIZE = False


class ScrolledPanel(Panel):
    """A panel that scrolls its lines."""

    navigable = True

    def scrolled(self, lines: list[Line], height: int) -> list[Line]:
        """The visible lines; the last one says how many follow."""
        self._top = max(0, min(self._top, len(lines) - height))
        left = len(lines) - self._top - height
        visible = lines[self._top : self._top + max(1, height)]
        return [*visible[:-1], [(f"… {left + 1} more lines", "label")]] if left > 0 else visible

    def action_move(self, rows: int, _columns: int) -> None:
        """Scroll."""
        self._top = max(0, self._top + rows)
        self.refresh()


def paragraph(
    text: str, width: int, max_lines: int, style: str, head: Span = ("", "")
) -> list[Line]:
    """Text in one colour, wrapped into at most `max_lines` lines, all to the right of `head`."""
    indent = cell_len(head[0])
    parts = wrap(text, max(8, width - indent) if indent else width, max_lines)
    if not indent:
        return [[(part, style)] for part in parts]
    return [
        [(" " * indent, "") if index else head, (part, style)] for index, part in enumerate(parts)
    ]


def plain_text(lines: Sequence[Line]) -> str:
    """The text of lines."""
    return "\n".join("".join(text for text, _ in line).rstrip() for line in lines)


def hint(text: str, width: int) -> list[Line]:
    """What would fill an empty panel."""
    return paragraph(text, width - 1, 5, "label", (" ", ""))


def card(title: str, offers: Sequence[tuple[str, str, str]], width: int, height: int) -> list[Line]:
    """What to do where there is nothing yet: a key, what it does, and more about that."""
    left = " " * max(2, (width - 62) // 2)
    lines: list[Line] = [[] for _ in range(max(0, (height - 9) // 2))]
    lines += [[(left + title, "bold headline")], []]
    for key, name, about in offers:
        lines += [
            [(f"{left}  {key}  ", "bold accent"), (name, "text")],
            [(f"{left}     {about}", "label")],
        ]
    return lines


def cells(line: Line) -> int:
    """The width of a line."""
    return sum(cell_len(text) for text, _ in line)


def justified(left: Line, right: Line, width: int) -> Line:
    """Spans on the left and at the right end, with a space between them at least."""
    return [*left, (" " * max(1, width - cells(left) - cells(right)), ""), *right]


def labelled(
    entries: Iterable[tuple[str, str]], column: int, width: int, max_lines: int = 2
) -> list[Line]:
    """Texts beside a column of dim labels, each wrapped; no line for no text."""
    return [
        line
        for label, text in entries
        if text
        for line in paragraph(text, width, max_lines, "text", (pad(label, column), "label"))
    ]


def meter(share: float, width: int, style: str = "accent") -> Line:
    """A bar that is full to this share."""
    halves = round(max(0.0, min(1.0, share)) * width * 2)
    full = "━" * (halves // 2) + "╸" * (halves % 2)
    return [(full, style), ("─" * (width - len(full)), "guide")]


def list_row(line: Line, width: int, *, selected: bool) -> Line:
    """A row of a list, on the colour of the cursor if it is selected."""
    if not selected:
        return line
    padded = [*line, (" " * (width - cells(line)), "")]
    return [(text, f"{style} on cursor") for text, style in padded]


def aligned(line: Line, width: int, align: str) -> Line:
    """Spans as a cell of a table: the last one is padded, or the first one if aligned right."""
    index = 0 if align == ">" else -1
    text, style = line[index]
    space = width - cells(line[1:] if index == 0 else line[:-1])
    line[index] = (pad(text, space, align), style)
    return line


def visible(
    sizes: Sequence[int], space: int, first: int, last: int | None = None, top: int | None = None
) -> range:
    """The items to draw in a space, from `top` if that shows `first` to `last`.

    Nothing is left empty at the end while there are items before.
    """
    if not sizes:
        return range(0)

    def start_for(end: int) -> int:
        start, used = end, sizes[end]
        while start and used + sizes[start - 1] <= space:
            start -= 1
            used += sizes[start]
        return start

    start = min(first if top is None else top, first, start_for(len(sizes) - 1))
    start = max(start, start_for(first if last is None else last))
    end, used = start, 0
    while end < len(sizes) and used + sizes[end] <= space:
        used += sizes[end]
        end += 1
    return range(start, max(end, start + 1))
