"""The panels of the Compare screen: each draws the screen's view."""

from collections.abc import Mapping
from dataclasses import replace

from textual import events
from textual.reactive import reactive

from grpo_tui.app.text.safe_text import wrap
from grpo_tui.app.tui.screens.compare.render import (
    answers_lines,
    legend_lines,
    metrics_lines,
    ranking_lines,
    settings_lines,
    verdict,
)
from grpo_tui.app.tui.screens.compare.state import PAGES, View
from grpo_tui.app.tui.widgets.pages import PagesPanel
from grpo_tui.app.tui.widgets.panel import Bar, Line, Panel, card, plain_text

MAX_RUNS = 12
MAX_SENTENCE = 5  # lines
OFFERS = (
    ("+", "add runs from a list", "space marks, ⏎ compares them"),
    ("G", "the newest sweep", "which setting is better, and how sure that is"),
    ("1", "go to Runs", "mark with space, then press d"),
)


class ViewPanel(Panel):
    """A panel that draws the screen's view."""

    view: reactive[View] = reactive(View)

    def topic(self) -> str:
        return f"metric:{self.view.metric}" if self.view.metric else ""


class VerdictLine(ViewPanel, Bar, can_focus=False):
    """Which setting is better, and with what confidence."""

    def watch_view(self) -> None:
        """Update the height to fit the sentences."""
        self.styles.height = len(self.paint(self.app.size.width, MAX_SENTENCE))

    def on_resize(self) -> None:
        self.watch_view()

    def paint(self, width: int, height: int) -> list[Line]:  # noqa: ARG002 - as many as needed
        return [
            [("   " if index else " ▸ ", "accent"), (text, "text")]
            for index, text in enumerate(wrap(verdict(self.view), width - 4, MAX_SENTENCE))
        ]


class RunsPanel(ViewPanel):
    """The legend, with each run's value of the chosen metric."""

    navigable = True

    def height_needed(self) -> int:
        """The rows for the runs."""
        return min(MAX_RUNS, max(1, len(self.view.runs)))

    def copy_text(self) -> str:
        """Return the run under the cursor."""
        run = self.view.chosen
        return f"{run.id} {self.view.name(run)}" if run else ""

    def paint(self, width: int, height: int) -> list[Line]:
        """A header, and the runs around the cursor."""
        view, count = self.view, len(self.view.runs)
        self.title = f"legend · {count} runs" if count > 1 else "legend"
        judged = view.comparison is not None and view.comparison.rankings
        marks = "▲ better ▼ worse than ◆ baseline" if judged else "◆ baseline"
        self.note = marks if count > 1 else ""
        head, *rows = legend_lines(view, width)
        return [head, *self.around(rows, view.run, max(1, height - 1))]

    async def on_click(self, event: events.Click) -> None:
        """Choose the clicked run; a double click opens it."""
        index = self.inside(event.offset).y - 1 + self._top
        if 0 <= index < len(self.view.runs):
            self.action_move(index - self.view.run, 0)
            if event.chain > 1:
                await self.run_action("screen.enter")


class SettingsPanel(ViewPanel, can_focus=False):
    """The settings that differ, at a glance; the page has the others as well."""

    def height_needed(self) -> int:
        """The rows for the settings; few for a single run's, which differ from nothing."""
        rows = len(self._changed.settings()) + len(self.view.sources)
        return min(rows, 99 if len(self.view.runs) > 1 else 5)

    @property
    def _changed(self) -> View:
        return replace(self.view, everything=False, row=0)

    def paint(self, width: int, height: int) -> list[Line]:
        """The table, with the number of differences in the frame."""
        self.note = settings_note(self.view)
        return settings_lines(self._changed, width, height) if self.view.comparison else []


def settings_note(view: View) -> str:
    """How many settings differ."""
    comparison = view.comparison
    if comparison is None:
        return ""
    return f"{len(comparison.differing)} differ, {len(comparison.same)} equal"


class PagePanel(ViewPanel, PagesPanel):
    """One of the pages, with the page names on top."""

    def titles(self) -> Mapping[str, str]:
        return {page: page for page in PAGES}

    @property
    def page(self) -> str:
        return self.view.page

    def _note(self) -> str:
        """A note in the frame on what the page shows."""
        view = self.view
        at = view.comparison.at if view.comparison else ""
        several = view.base is not None and len(view.runs) > 1
        base = f"Δ to {view.column_name(view.base_column)}" if several else ""
        mean = "means over seeds" if view.bands else "raw values"
        notes = {
            "settings": f"{settings_note(view)} · ⏎ all or changed",
            "ranking": base, "metrics": f"{mean} at {at}" + f" · {base}" * several,
            "answers": f"up to {at} · n p prompt",
        }  # fmt: skip
        return notes[view.page] if at else ""

    def height_needed(self) -> int | None:
        """The rows of a page that may be low; None if it takes any number."""
        low = self.view.page == "ranking" or (
            self.view.page == "answers" and self.view.answers is not None
        )
        return max(10, len(self.paint(max(10, self.inner.width), 99)) + 2) if low else None

    def topic(self) -> str:
        rows = self.view.rows
        on_metric = self.view.page == "metrics" and rows
        return f"metric:{rows[min(self.view.row, len(rows) - 1)].key}" if on_metric else ""

    def paint(self, width: int, height: int) -> list[Line]:
        """The page names, then the current page once the runs have been read."""
        self.title, self.note = self.view.page, self._note()
        draw = {"ranking": ranking_lines, "metrics": metrics_lines, "settings": settings_lines,
                "answers": answers_lines}[self.view.page]  # fmt: skip
        lines = draw(self.view, width, height - 1) if self.view.comparison else []
        return [self.strip_line(), *lines]

    def copy_text(self) -> str:
        """Return the visible part of the page."""
        return plain_text(self.paint(max(40, self.inner.width), 400)[1:])


class CardPanel(ViewPanel):
    """Shown when there is nothing to compare: how to add runs."""

    def paint(self, width: int, height: int) -> list[Line]:
        return card("No runs to compare yet.", OFFERS, width, height)
