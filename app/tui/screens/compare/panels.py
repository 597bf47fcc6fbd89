"""The panes of the Compare screen; each draws a `View` and posts messages for user actions."""

import time
from dataclasses import dataclass
from typing import Any, ClassVar

from textual import events
from textual.message import Message
from textual.reactive import reactive

from grpo_engine.metrics import spec
from grpo_tui.app.text.safe_text import clip, wrap
from grpo_tui.app.tui.looks.colours import Palette, style
from grpo_tui.app.tui.screens.compare.lines import (
    answers_lines,
    grid_lines,
    metrics_lines,
    ranking_lines,
    run_notes,
    runs_lines,
    seeds_lines,
    settings_lines,
    work_text,
)
from grpo_tui.app.tui.screens.compare.texts import differences, verdict
from grpo_tui.app.tui.screens.compare.view import PAGES, Page, View, measure_of
from grpo_tui.app.tui.widgets.panel import Line, Panel
from grpo_tui.app.tui.widgets.top_bar import pulse

MOST_RUNS = 12
MOST_WORDS = 5  # lines


@dataclass
class RunPicked(Message):
    """A run was clicked; `twice` means a double click, which opens it."""

    place: int
    twice: bool = False


@dataclass
class PagePicked(Message):
    """A page's name was clicked."""

    page: Page


@dataclass
class RowPicked(Message):
    """A row of the page was clicked or scrolled."""

    by: int


class ViewPanel(Panel):
    """A panel that draws the screen's view."""

    view: reactive[View] = reactive(View)


class VerdictLine(ViewPanel, can_focus=False):
    """Which run is better, with what confidence, and what differs."""

    framed: ClassVar[bool] = False

    def watch_view(self) -> None:
        """Update the height to fit the sentences."""
        self.styles.height = len(self.paint(self.app.size.width, MOST_WORDS))

    def on_resize(self) -> None:
        self.watch_view()

    def paint(self, width: int, height: int) -> list[Line]:  # noqa: ARG002 - as many as needed
        """Two sentences; the first may take most of the lines."""
        palette = self.palette
        first = wrap(verdict(self.view), width - 4, MOST_WORDS - 1)
        lines: list[Line] = [
            [(" ▸ " if not place else "   ", style(palette.accent)), (text, style(palette.text))]
            for place, text in enumerate(first)
        ]
        rest = differences(self.view)
        for text in wrap(rest, width - 4, max(1, 3 - len(lines))) if rest else ():
            lines.append([("   " + text, style(palette.label))])
        return lines

    def copy_text(self) -> str:
        return f"{verdict(self.view)}\n{differences(self.view)}"


class RunsPanel(ViewPanel):
    """The legend, with each run's value of the chosen metric."""

    now: reactive[float] = reactive(0.0, repaint=False)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("runs", **kwargs)
        self._first = 0

    def needs(self) -> int:
        """The rows for the runs and, on a large terminal, for notes on their values."""
        notes = 0 if self.app.size.height < 30 else len(self._notes(max(10, self.inner.width)))
        return min(MOST_RUNS, max(1, len(self.view.runs))) + min(3, notes)

    def watch_now(self, old: float, new: float) -> None:
        """Animate the marks of live runs."""
        if pulse(old) != pulse(new) and any(run.active for run in self.view.runs):
            self.refresh()

    def topic(self) -> str:
        return f"metric:{self.view.metric}" if self.view.metric else "screen:compare"

    def copy_text(self) -> str:
        """Return the run under the cursor."""
        run = self.view.chosen
        return f"{run.id} {self.view.name(run)} {work_text(run)}" if run else ""

    def _notes(self, width: int) -> list[str]:
        return [part for note in run_notes(self.view) for part in wrap(note, width, 2)]

    def paint(self, width: int, height: int) -> list[Line]:
        """A header, the runs around the cursor, and what is missing."""
        view, palette = self.view, self.palette
        count = len(view.runs)
        self.title = f"legend · {count} runs" if count > 1 else "legend"
        judged = view.comparison is not None and view.comparison.rankings
        marks = "▲ better ▼ worse than ◆ baseline" if judged else "◆ baseline"
        self.note = marks if count > 1 else ""
        if view.comparison is None:
            return [_reading(view, palette)]
        lines = runs_lines(view, width, palette, self.now or time.time())
        notes = self._notes(width)
        room = max(1, height - 1 - min(3, len(notes)) if height > 8 else height - 1)
        rows = lines[1:]
        self._first = max(0, min(max(min(self._first, view.run), view.run - room + 1),
                                 len(rows) - room))  # fmt: skip
        kept = rows[self._first : self._first + room]
        dim = style(palette.label)
        tail: list[Line] = [[(note, dim)] for note in notes]
        return [lines[0], *kept, *tail]

    def on_click(self, event: events.Click) -> None:
        """Choose the clicked run; a double click opens it."""
        place = self.inside(event.offset).y - 1 + self._first
        if 0 <= place < len(self.view.runs):
            self.post_message(RunPicked(place, event.chain > 1))

    def on_mouse_scroll_down(self) -> None:
        self.post_message(RunPicked(self.view.run + 1))

    def on_mouse_scroll_up(self) -> None:
        self.post_message(RunPicked(self.view.run - 1))


class SettingsPanel(ViewPanel):
    """The settings that differ."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("settings that differ", **kwargs)

    def needs(self) -> int:
        """The rows for the settings; few for a single run's, which differ from nothing."""
        return min(len(self.view.settings()), 99 if len(self.view.runs) > 1 else 5)

    def copy_text(self) -> str:
        """Return the settings that differ."""
        return differences(self.view)

    def paint(self, width: int, height: int) -> list[Line]:
        """The table, with the number of differences in the frame."""
        self.title, self.note = settings_words(self.view)
        if self.view.comparison is None:
            return [_reading(self.view, self.palette)]
        return settings_lines(self.view, width, height, self.palette)

    def on_mouse_scroll_down(self) -> None:
        self.post_message(RowPicked(3))

    def on_mouse_scroll_up(self) -> None:
        self.post_message(RowPicked(-3))


def _reading(view: View, palette: Palette) -> Line:
    """Where results will be, as long as the runs are read for the first time."""
    return [("reading" if view.reading else "", style(palette.label))]


def settings_words(view: View) -> tuple[str, str]:
    """Title and note of the settings panel."""
    count = len(view.comparison.differing) if view.comparison else 0
    everything = view.everything or len(view.runs) == 1
    title = "all settings" if everything else "settings that differ"
    if view.comparison is None:
        return title, ""
    same = len(view.comparison.same)
    return title, f"{count} differ, {same} equal" + ("" if everything else " (s)")


class PagePanel(ViewPanel):
    """One of the pages, with the page names on top."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("metrics", **kwargs)
        self._tabs: list[tuple[int, int, Page]] = []

    def _about(self) -> str:
        """A note in the frame on what the page shows."""
        view = self.view
        metric = spec(view.metric).label if view.metric else ""
        at = view.comparison.at if view.comparison else ""
        base = f"Δ to {view.name(view.base)}" if view.base and len(view.runs) > 1 else ""
        stat = {"best": "best of rewards and evaluations, else last", "last": "last",
                "at": f"at {at}"}[view.stat]  # fmt: skip
        measure = measure_of(view.comparison, view.metric)
        by = "" if measure in ("", view.metric) else " · the verdict is by held-out answers"
        return {
            "ranking": f"{base} · T threshold" if base else "",
            "metrics": " · ".join(part for part in (f"raw values, {stat} (t)", base) if part),
            "settings": settings_words(view)[1],
            "seeds": metric + by,
            "grid": metric + by,
            "answers": f"up to {at} · n p prompt" if at else "",
        }[view.page]

    def needs(self) -> int:
        """The rows of a page that may be low; 0 if it takes any number."""
        short = self.view.page in ("ranking", "grid") or (
            self.view.page == "answers" and self.view.answers is not None
        )
        return max(10, len(self.paint(max(10, self.inner.width), 99)) + 2) if short else 0

    def topic(self) -> str:
        rows = self.view.rows
        if self.view.page == "metrics" and rows:
            return f"metric:{rows[min(self.view.row, len(rows) - 1)].key}"
        return "screen:compare"

    def paint(self, width: int, height: int) -> list[Line]:
        """The page names, then the current page."""
        self.title, self.note = self.view.page, self._about()
        draw = {
            "ranking": ranking_lines, "metrics": metrics_lines, "settings": settings_lines,
            "seeds": seeds_lines, "grid": grid_lines, "answers": answers_lines,
        }[self.view.page]  # fmt: skip
        if self.view.comparison is None:
            return [self._tab_line(), _reading(self.view, self.palette)]
        return [self._tab_line(), *draw(self.view, width, height - 1, self.palette)]

    def _tab_line(self) -> Line:
        palette = self.palette
        line: Line = []
        self._tabs = []
        used = 0
        for page in PAGES:
            start = used
            if page == self.view.page:
                line += [("▌", style(palette.accent)), (page, style(palette.headline, bold=True)),
                         ("▐", style(palette.accent))]  # fmt: skip
            else:
                line.append((f" {page} ", style(palette.label)))
            used += len(page) + 2
            self._tabs.append((start, used, page))
        line.append(("  v next", style(palette.label)))
        return line

    def copy_text(self) -> str:
        """Return the visible part of the page."""
        lines = self.paint(max(40, self.inner.width), 400)[1:]
        return "\n".join("".join(text for text, _ in line).rstrip() for line in lines)

    def on_click(self, event: events.Click) -> None:
        """Switch to the clicked page, or choose the clicked row."""
        place = self.inside(event.offset)
        if place.y == 0:
            for start, end, page in self._tabs:
                if start <= place.x < end:
                    self.post_message(PagePicked(page))

    def on_mouse_scroll_down(self) -> None:
        self.post_message(RowPicked(3))

    def on_mouse_scroll_up(self) -> None:
        self.post_message(RowPicked(-3))


class CardPanel(ViewPanel):
    """Shown when there is nothing to compare: how to add runs."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("compare", **kwargs)

    def paint(self, width: int, height: int) -> list[Line]:
        view, palette = self.view, self.palette
        if view.problem:
            return [[(part, style(palette.bad))] for part in wrap(view.problem, width - 2, height)]
        if not view.loaded:
            return [[("reading the store", style(palette.label))]]
        inside = min(width - 4, 64)
        left = " " * max(0, (width - inside) // 2)
        lines: list[Line] = [[] for _ in range(max(0, (height - 11) // 2))]
        lines += [[(left + "No runs to compare yet.", style(palette.headline, bold=True))], []]
        for key, name, why in self._offers():
            lines.append([(f"{left}  {key}  ", style(palette.accent, bold=True)),
                          (clip(name, inside), style(palette.text))])  # fmt: skip
            lines.append([(left + " " * 5, None), (clip(why, inside - 5), style(palette.label))])
        return lines

    def _offers(self) -> list[tuple[str, str, str]]:
        newest = self.view.newest
        if not newest:
            return [("1", "go to Runs", "there are no runs yet: ⏎ there starts the first one")]
        offers = [("+", "pick runs here", "space marks, ⏎ compares them")]
        if len(newest) > 1:
            names = " and ".join(run.name or run.id for run in newest[:2])
            offers.insert(0, ("⏎", "compare the two newest runs", names))
        return [*offers, ("1", "go to Runs", "mark with space, then press d")]
