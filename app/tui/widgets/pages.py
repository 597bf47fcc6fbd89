"""PagesPanel: one of several pages, below a strip with the titles of all of them."""

from collections.abc import Mapping

from textual import events

from grpo_tui.app.text.safe_text import cell_len
from grpo_tui.app.tui.widgets.panel import Line, Panel


class PagesPanel(Panel):
    """A panel of pages; a click on a title turns to its page, by the screen's `page` action."""

    navigable = True

    def titles(self) -> Mapping[str, str]:
        """The title of each page, by its name."""
        raise NotImplementedError

    @property
    def page(self) -> str:
        """The name of the visible page."""
        raise NotImplementedError

    def strip_line(self) -> Line:
        """The titles of the pages, the current one marked."""
        line: Line = []
        for name, title in self.titles().items():
            here = name == self.page
            style = "bold headline" if here else "label"
            line += [("▌" if here else " ", "accent"), (title, style)]
            line += [("▐" if here else " ", "accent")]
        return line

    async def on_click(self, event: events.Click) -> None:
        """Turn to the clicked page."""
        offset, end = self.inside(event.offset), 0
        names = {title: name for name, title in self.titles().items()}
        for text, _ in self.strip_line():
            start, end = end, end + cell_len(text)
            if offset.y == 0 and start <= offset.x < end and text in names:
                await self.run_action(f"screen.page('{names[text]}')")
