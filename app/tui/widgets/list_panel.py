"""ListPanel: a panel whose lines are items with a cursor."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from textual import events
from textual.message import Message
from textual.reactive import reactive

from grpo_tui.app.text.numbers import clamped
from grpo_tui.app.tui.widgets.panel import Line, Panel, visible


class ListPanel(Panel):
    """A panel with a cursor on one of its items; enter or a second click opens it."""

    navigable = True

    @dataclass
    class Chosen(Message):
        """The cursor is to move to an item."""

        item: int

    cursor: reactive[int] = reactive(0)

    def __init__(self, title: str, **kwargs: Any) -> None:
        super().__init__(title, **kwargs)
        self._items: list[int | None] = []  # of each line

    def count(self) -> int:
        """The number of items."""
        raise NotImplementedError

    @property
    def selected(self) -> int:
        """The item under the cursor; the last one if there are fewer now."""
        return clamped(self.cursor, self.count())

    @property
    def page_rows(self) -> int:
        """The visible items, less one."""
        return max(1, len({item for item in self._items if item is not None}) - 1)

    def listed(
        self, blocks: Sequence[list[Line]], height: int, selected: int, above: int = 0
    ) -> list[Line]:
        """The lines of the items that fit, the selected one among them; lines `above` have none."""
        indices = visible([len(block) for block in blocks], height, selected, top=self._top)
        self._top = indices.start
        self._items = [None] * above + [index for index in indices for _ in blocks[index]]
        return [line for index in indices for line in blocks[index]]

    def action_move(self, rows: int, _columns: int) -> None:
        """Move the cursor."""
        self.cursor = clamped(self.selected + rows, self.count())

    def action_open(self) -> None:
        """Open or explain the item under the cursor."""
        self.post_message(self.Opened())

    def on_click(self, event: events.Click) -> None:
        """Choose the clicked item; a second click opens it."""
        row = self.inside(event.offset).y
        item = self._items[row] if 0 <= row < len(self._items) else None
        if item is not None:
            self.choose(item)
            if event.chain == 2:
                self.action_open()

    def choose(self, item: int) -> None:
        """Move the cursor to an item."""
        self.action_move(item - self.selected, 0)
