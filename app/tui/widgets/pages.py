"""PagesPanel: one of several pages, below a strip with the titles of all of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar

from textual import events
from textual.message import Message

from grpo_tui.app.text.safe_text import cell_len
from grpo_tui.app.tui.widgets.panel import Line, Panel


def strip_of_titles(titles: Mapping[str, str], current: str) -> Line:
    """The titles by their names, the current one marked."""
    line: Line = []
    for name, title in titles.items():
        if name == current:
            line += [("▌", "accent"), (title, "bold headline"), ("▐", "accent")]
        else:
            line.append((f" {title} ", "label"))
    return line


def name_at(titles: Mapping[str, str], x: int) -> str:
    """The name of the title at a cell of the strip, or an empty text."""
    ends = accumulate(cell_len(title) + 2 for title in titles.values())
    return next((name for name, end in zip(titles, ends, strict=True) if 0 <= x < end), "")


class PagesPanel(Panel):
    """A panel of pages; a click on a title asks the screen to turn to its page."""

    navigable = True
    titles: ClassVar[Mapping[str, str]]  # by the names of the pages
    view: Any  # has the name of the visible page

    @dataclass
    class PageClicked(Message):
        """The screen is to show a page."""

        page: str

    def strip_line(self) -> Line:
        """The titles of the pages, the current one marked."""
        return strip_of_titles(self.titles, self.view.page)

    def on_click(self, event: events.Click) -> None:
        """Turn to the clicked page."""
        x, y = self.inside(event.offset)
        if y == 0 and (name := name_at(self.titles, x)):
            self.post_message(self.PageClicked(name))
