"""The table of runs and the preview; each draws a `View`."""

import time
from dataclasses import dataclass
from typing import Any

from textual import events
from textual.message import Message
from textual.reactive import reactive

from grpo_tui.app.text.safe_text import cell_len, pad, wrap
from grpo_tui.app.tui.looks.colours import style
from grpo_tui.app.tui.screens.runs.columns import Cell, Column, fitting, head_line, run_line
from grpo_tui.app.tui.screens.runs.preview import preview_lines
from grpo_tui.app.tui.screens.runs.view import Row, View
from grpo_tui.app.tui.widgets.panel import Line, Panel
from grpo_tui.app.tui.widgets.top_bar import pulse

CARD = (
    ("⏎", "two-minute starter run", "an embedded model learns arithmetic on this machine"),
    ("p", "play the bundled recorded run", "needs nothing, not even MLX"),
    ("n", "a run of your own", "choose model, task and settings"),
)


@dataclass
class RowPicked(Message):
    """A line of the table was clicked; `twice` opens it."""

    place: int
    twice: bool


class ViewPanel(Panel):
    """A panel that draws the screen's view."""

    view: reactive[View] = reactive(View)


class RunsTable(ViewPanel):
    """One line per run; only visible lines are drawn."""

    now: reactive[float] = reactive(0.0, repaint=False)

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("runs", **kwargs)
        self._top = 0

    def watch_now(self, old: float, new: float) -> None:
        """Animate the marks of live runs."""
        if pulse(old) != pulse(new) and any(run.active for run in self.view.runs[:200]):
            self.refresh()

    def _about(self) -> str:
        """How many runs there are and why some are hidden, for the frame."""
        view = self.view
        hidden = [view.filter and f"filter {view.filter}", "running only" if view.running else ""]
        hidden += ["with archived" if view.archived else "", view.group and f"by {view.group}"]
        marked = f"{len(view.marks)} marked" if view.marks else ""
        waiting = f"{view.waiting} in the queue (Q)" if view.waiting else ""
        count = len(view.runs)
        runs = f"{count} run" if count == 1 else f"{count} runs"
        if view.more:
            runs = f"the first {runs}, / finds others"
        parts = [p for p in (*hidden, marked, waiting, runs) if p]
        return " · ".join(parts)

    def topic(self) -> str:
        return "screen:runs"

    def copy_text(self) -> str:
        """Return the run's id and name."""
        chosen = self.view.chosen
        return f"{chosen.id} {chosen.name}" if chosen else ""

    @property
    def columns(self) -> frozenset[str]:
        """Titles of the columns that fit."""
        return frozenset(column.title for column in self._fitting(self.inner.width))

    def _fitting(self, width: int) -> tuple[Column, ...]:
        tagged = any(run.tags for run in self.view.runs)
        return fitting(width, self.view.columns, tagged=tagged, sort=self.view.sort)

    def in_sight(self) -> tuple[Row, ...]:
        """The visible rows."""
        return self.view.rows[self._top : self._top + max(1, self.inner.height - 1)]

    def paint(self, width: int, height: int) -> list[Line]:
        """Titles, then the rows around the cursor; a hint card if there are no runs."""
        view, palette = self.view, self.palette
        self.note = self._about()
        if view.problem:
            return [[(part, style(palette.bad))] for part in wrap(view.problem, width, height)]
        if view.empty:
            return self._card(width, height)
        if not view.loaded:
            return [[("reading the store", style(palette.label))]]
        columns = self._fitting(width)
        rows, room = view.rows, max(1, height - 1)
        self._top = max(0, min(max(min(self._top, view.cursor), view.cursor - room + 1),
                               len(rows) - room))  # fmt: skip
        lines = [head_line(columns, view.sort, palette)]
        now = self.now or time.time()
        for place, row in enumerate(rows[self._top : self._top + room], self._top):
            back = palette.cursor if place == view.cursor else palette.paper
            cell = Cell(
                palette=palette, back=back, now=now, sparks=view.sparks, baseline=view.pinned
            )
            if row.run is None:
                sign = "▸" if row.folded else "▾"
                name = f"no {view.group}" if row.group == "–" else f"{view.group} {row.group}"
                text = f"{sign} {name}  ({row.count})"
                lines.append([(pad(text, width), style(palette.headline, back))])
            else:
                key = row.run.key
                line = run_line(row.run, columns, cell, marked=key in view.marks,
                                pinned=key == view.baseline)  # fmt: skip
                used = sum(cell_len(text) for text, _ in line)
                lines.append([*line, (" " * max(0, width - used), style(None, back))])
        if not rows:
            lines.append([("no run fits; esc ends the search", style(palette.label))])
        return lines

    def _card(self, width: int, height: int) -> list[Line]:
        palette = self.palette
        inside = min(width - 4, 62)
        left = " " * max(0, (width - inside) // 2)
        lines: list[Line] = [[] for _ in range(max(0, (height - 9) // 2))]
        lines.append([(left + "No runs yet.", style(palette.headline, bold=True))])
        lines.append([])
        for key, name, why in CARD:
            lines.append([(f"{left}  {key}  ", style(palette.accent, bold=True)),
                          (name, style(palette.text))])  # fmt: skip
            lines.append([(left + " " * 5, None), (why, style(palette.label))])
        return lines

    def on_click(self, event: events.Click) -> None:
        """Choose the clicked row; a double click opens it."""
        place = self.inside(event.offset).y - 1 + self._top
        if 0 <= place < len(self.view.rows):
            self.post_message(RowPicked(place, event.chain > 1))

    def on_mouse_scroll_down(self) -> None:
        self.post_message(RowPicked(self.view.moved(3).cursor, False))

    def on_mouse_scroll_up(self) -> None:
        self.post_message(RowPicked(self.view.moved(-3).cursor, False))


class PreviewPanel(ViewPanel):
    """The run under the cursor at a glance."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("preview", **kwargs)

    def paint(self, width: int, height: int) -> list[Line]:
        """The run's preview, or a hint if there is no run."""
        view, palette = self.view, self.palette
        chosen, preview = view.chosen, view.preview
        self.title = (chosen.name or chosen.id) if chosen else "preview"
        if chosen is None:
            hint = "The curves of a run appear here."
            if view.row:
                hint = "⏎ folds or opens the group, space marks its runs."
            return [[(part, style(palette.label))] for part in wrap(hint, width, height)]
        if preview is None or preview.detail.summary.key != chosen.key:
            return [[("reading", style(palette.label))]]
        return preview_lines(preview, width, height, palette)
