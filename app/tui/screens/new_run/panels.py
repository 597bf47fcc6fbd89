"""The panes of the New run screen; each draws a `View` and posts messages for user actions."""

from dataclasses import dataclass
from typing import Any, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.message import Message
from textual.reactive import reactive
from textual.widgets import Input

from grpo_tui.app.tui.screens.new_run.completion import NAMES, Completer
from grpo_tui.app.tui.screens.new_run.lines import (
    about_line,
    head_line,
    origin_line,
    question_line,
    setting_lines,
    value_at,
    value_words,
)
from grpo_tui.app.tui.screens.new_run.view import Row, View
from grpo_tui.app.tui.widgets.field import Field
from grpo_tui.app.tui.widgets.panel import Line, Panel


@dataclass
class RowPicked(Message):
    """A line of the settings was clicked; `twice` edits or folds it."""

    id: str
    twice: bool


@dataclass
class Typed(Message):
    """The text of the edited setting has changed."""

    path: str
    text: str


@dataclass
class TypingEnded(Message):
    """The field lost the focus; editing continues `by` settings further on."""

    by: int = 0


@dataclass
class PresetPicked(Message):
    """A preset was clicked in the header."""

    name: str


class ViewPanel(Panel):
    """A panel that draws the screen's view, which is None until the screen has one.

    `reads` lists the attributes of the view that it draws; empty means all.
    """

    reads: ClassVar[tuple[str, ...]] = ()
    view: reactive[View | None] = reactive(None)

    def take(self, view: View) -> None:
        """Set a new view; redraw only if the attributes in `reads` have changed."""
        old = self.view
        if (
            old is None
            or not self.reads
            or any(getattr(old, name) is not getattr(view, name) for name in self.reads)
        ):
            self.view = view
        else:
            self.set_reactive(ViewPanel.view, view)


class ScrolledPanel(ViewPanel):
    """A panel that scrolls its lines."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._top = 0
        self._all = 0

    def lines(self, view: View, width: int) -> list[Line]:
        raise NotImplementedError

    def head_height(self) -> int:
        """Height of the lines at the top that other widgets cover."""
        return 0

    def paint(self, width: int, height: int) -> list[Line]:
        """The visible lines."""
        if self.view is None:
            return []
        lines = self.lines(self.view, width)
        head = self.head_height()
        room = max(1, height - head)
        self._all = len(lines)
        self._top = max(0, min(self._top, self._all - room))
        shown = lines[self._top : self._top + room]
        if self._top + room < self._all and shown:
            # a line that says more follows is better than a cut one
            left = self._all - self._top - room + 1
            shown[-1] = [(f"… {left} more line{'s' if left > 1 else ''}", None)]
        return [[] for _ in range(head)] + shown

    def scroll_lines(self, by: int) -> None:
        self._top = max(0, self._top + by)
        self.refresh()

    def on_mouse_scroll_down(self) -> None:
        self.scroll_lines(2)

    def on_mouse_scroll_up(self) -> None:
        self.scroll_lines(-2)


class HeaderPanel(ViewPanel, can_focus=False):
    """The origin of the settings, and whether they can be launched."""

    DEFAULT_CSS = "HeaderPanel { height: 2; }"
    reads = ("checked", "origin", "yaml_problem", "lacking", "trial", "tried")
    framed: ClassVar[bool] = False
    ALLOW_MAXIMIZE = False

    def __init__(self, names: tuple[str, ...], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._names = names

    def paint(self, width: int, height: int) -> list[Line]:  # noqa: ARG002 - two lines always
        """Presets and state, then the preset's description."""
        if self.view is None:
            return []
        return [
            origin_line(self.view, self._names, width, self.palette),
            about_line(self.view, width, self.palette),
        ]

    def on_click(self, event: events.Click) -> None:
        """Start from the clicked preset."""
        if event.y or self.view is None:
            return
        place = 0
        for text, _ in origin_line(self.view, self._names, self.size.width, self.palette):
            place += len(text)
            if event.x < place:
                if text.strip() in self._names:
                    self.post_message(PresetPicked(text.strip()))
                return


class FieldInput(Field):
    """The field placed over the edited value."""

    DEFAULT_CSS = """
    FieldInput {
        position: absolute; display: none; border: none; height: 1; padding: 0;
        background: $panel; color: $headline;
    }
    FieldInput:focus { border: none; background-tint: transparent 0%; }
    """
    submits = "done"

    def on_key(self, event: events.Key) -> None:
        """On tab, keep the text and edit the next setting."""
        if event.key in ("tab", "shift+tab"):
            event.stop()
            event.prevent_default()
            self.post_message(TypingEnded(1 if event.key == "tab" else -1))


class SettingsPanel(ViewPanel):
    """All settings by section; only the visible lines are drawn."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("settings", **kwargs)
        self._top = 0
        self._rows: list[Row | None] = []
        self._first = 0

    def compose(self) -> ComposeResult:
        yield FieldInput(select_on_focus=False)

    @property
    def input(self) -> FieldInput:
        return self.query_one(FieldInput)

    def watch_view(self) -> None:
        """Place the field, after the lines have been drawn."""
        self.refresh()
        self.place_field()

    def topic(self) -> str:
        chosen = self.view.chosen if self.view is not None else None
        return f"setting:{chosen.info.path}" if chosen is not None else "screen:new_run"

    def copy_text(self) -> str:
        """Return the settings as YAML, or the line under the cursor."""
        view = self.view
        if view is None:
            return ""
        if view.checked.config is not None:
            return view.form.to_yaml()
        return f"{view.row.id}={view.chosen.text}" if view.chosen is not None else ""

    # -- drawing ----------------------------------------------------------------------------

    def _lines(self, view: View, width: int) -> tuple[list[Line], list[Row | None], int, int]:
        """All lines, their rows, and the first and last line of the cursor's row or section."""
        lines: list[Line] = []
        owners: list[Row | None] = []
        first = last = 0
        asked, here = "", view.row.id
        for row in view.rows:
            own: list[Line]
            if row.field is None:
                own, asked = [head_line(view, row, width, self.palette)], ""
            else:
                if row.section == "algorithm" and row.question and row.question != asked:
                    lines.append(question_line(row.question, self.palette))
                    owners.append(None)
                asked = row.question
                own = setting_lines(view, row, width, self.palette)
            if row.id == here:
                first = len(lines)
            lines += own
            if here in (row.id, f"#{row.section}"):
                last = len(lines) - 1
            owners += [row] * len(own)
        return lines, owners, first, last

    def paint(self, width: int, height: int) -> list[Line]:
        """The lines around the cursor; the frame says why settings are hidden."""
        view = self.view
        if view is None:
            return []
        hidden = [f"find {view.search}" if view.search else ""]
        hidden.append("changed only" if view.only_changed else "")
        count = sum(row.field is not None for row in view.rows)
        self.note = " · ".join([*filter(None, hidden), f"{count} of {len(view.checked.fields)}"])
        lines, self._rows, first, last = self._lines(view, width)
        self._first = first
        if not lines:
            words = "no setting fits; esc ends the search, C shows all again"
            return [[(words, None)]]
        self._top = max(0, min(self._top, len(lines) - height))
        self._top = min(max(self._top, last - height + 1), max(0, first - 1))
        return lines[self._top : self._top + height]

    def place_field(self) -> None:
        """Place the field over the value of the cursor's row, or hide it."""
        view, field = self.view, self.input
        width, height = self.inner
        if view is None or not view.editing or view.chosen is None or width <= 0:
            field.display = False
            return
        left = value_at(width)
        row = self._first - self._top
        field.styles.offset = (left + 1, row + 1)
        field.styles.width = max(4, width - left)
        field.display = 0 <= row < height

    def on_resize(self, _event: events.Resize) -> None:
        """Move the field with the lines."""
        self.call_after_refresh(self.place_field)

    # -- editing ----------------------------------------------------------------------------

    def edit(self, text: str) -> None:
        """Open the field on the row under the cursor; while it is empty, it tells what holds."""
        path = self.view.row.id if self.view is not None else ""
        field = self.input
        chosen = self.view.chosen if self.view is not None else None
        holds = value_words(self.view, chosen) if self.view is not None and chosen else ()
        field.placeholder = "  ".join(filter(None, holds))
        with field.prevent(Input.Changed):
            field.suggester = Completer(path) if path in NAMES else None
            field.value = text
        field.cursor_position = len(text)
        self.place_field()
        field.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Validate while the user types."""
        event.stop()
        if self.view is not None and self.view.editing:
            self.post_message(Typed(self.view.cursor, event.value))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep the text on ⏎."""
        event.stop()
        self.post_message(TypingEnded())

    def on_descendant_blur(self) -> None:
        """Keep the text when the field loses the focus."""
        if self.view is not None and self.view.editing:
            self.post_message(TypingEnded())

    # -- mouse ------------------------------------------------------------------------------

    def on_click(self, event: events.Click) -> None:
        """Choose the clicked row; a second click edits it."""
        place = self.inside(event.offset).y + self._top
        if 0 <= place < len(self._rows) and (row := self._rows[place]) is not None:
            again = self.view is not None and self.view.row.id == row.id
            self.post_message(RowPicked(row.id, event.chain > 1 or again or row.field is None))

    def on_mouse_scroll_down(self) -> None:
        if self.view is not None and not self.view.editing:
            self.post_message(RowPicked(self.view.moved(3).cursor, False))

    def on_mouse_scroll_up(self) -> None:
        if self.view is not None and not self.view.editing:
            self.post_message(RowPicked(self.view.moved(-3).cursor, False))
