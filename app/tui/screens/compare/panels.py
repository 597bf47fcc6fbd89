"""The panels of the Compare screen: each draws the screen's view.

In the charts each run has a mark as well as a colour. Marks are staggered along the curves, so that
they stay visible where curves overlap, and appear at each curve's end.
"""

import re
from dataclasses import dataclass, replace
from typing import ClassVar

from textual import events
from textual.message import Message
from textual.reactive import reactive

from grpo_tui.app.text.words import count_of
from grpo_tui.app.tui.screens.compare import render
from grpo_tui.app.tui.screens.compare.state import PAGES, CompareView
from grpo_tui.app.tui.screens.watch.render import sentence_lines
from grpo_tui.app.tui.widgets.charts.plot import LABELS, axis_line, cross_position, ticks_of
from grpo_tui.app.tui.widgets.charts.stack import ChartStack, Row, side_by_side
from grpo_tui.app.tui.widgets.pages import PagesPanel
from grpo_tui.app.tui.widgets.panel import BarPanel, Line, ViewPanel, card, plain_text

MAX_RUNS = 12
TALL = 8  # lines of a chart
SENTENCE_END = re.compile(r"(?<=\.) ")  # the next may begin with the name of a run
OFFERS = (
    ("+", "add runs from a list", "space marks, ⏎ compares them"),
    ("G", "the newest sweep", "which setting is better, and how sure that is"),
    ("1", "go to Runs", "mark with space, then press d"),
)
# Fields of the view that the page below the curves draws alone, and the curves and the legend.
OF_PAGE = frozenset(("page", "row", "everything", "prompts", "prompt", "completions"))
OF_CURVES = frozenset(("charts", "chart", "metrics", "smooth"))


class ComparePanel(ViewPanel):
    """A panel that draws the screen's view."""

    view: reactive[CompareView] = reactive(CompareView)

    def topic(self) -> str:
        return f"metric:{self.view.metric}" if self.view.metric else ""


class VerdictLine(ComparePanel, BarPanel, can_focus=False):
    """Which setting is better, and with what confidence."""

    unseen = OF_PAGE | OF_CURVES | {"at", "filter"}

    def height_needed(self, width: int, height: int) -> int:
        """The lines that its sentences take, of a tenth of the screen."""
        return len(self.paint(width, max(2, height // 10)))

    def paint(self, width: int, height: int) -> list[Line]:
        """Whole sentences, as many as fit."""
        return sentence_lines(SENTENCE_END.split(render.verdict(self.view)), width, height)


class RunsPanel(ComparePanel):
    """The legend, with each run's value of the chosen metric."""

    navigable = True
    unseen = OF_PAGE | {"filter", "smooth"}

    def height_needed(self) -> int:
        """The rows for the runs."""
        return min(MAX_RUNS, max(1, len(self.view.runs or self.view.requested)))

    def copy_text(self) -> str:
        """Return the run under the cursor."""
        run = self.view.chosen
        return f"{run.id} {self.view.name(run)}" if run else ""

    def paint(self, width: int, height: int) -> list[Line]:
        """A header, and the runs around the cursor."""
        view, count = self.view, len(self.view.runs)
        self.title = f"legend · {count} runs" if count > 1 else "legend"
        judged = view.comparison.rankings and count > 1
        self.note = "▲ better ▼ worse than the baseline" if judged else ""
        if view.reading:
            return render.requested_lines(view, width)[: max(1, height)]
        head, *rows = render.legend_lines(view, width)
        listed = self.around(rows, view.run, max(1, height - 1))
        if len(listed) < count:
            self.title = f"legend · {self._top + 1}–{self._top + len(listed)} of {count} runs ↕"
        return [head, *listed]

    def on_click(self, event: events.Click) -> None:
        """Choose the clicked run; a double click opens it."""
        index = self.inside(event.offset).y - 1 + self._top
        if 0 <= index < len(self.view.runs):
            self.action_move(index - self.view.run, 0)
            if event.chain > 1:
                self.post_message(self.Opened())


class SettingsPanel(ComparePanel, can_focus=False):
    """The settings that differ, at a glance; the page has the others as well."""

    unseen = OF_PAGE | OF_CURVES | {"at"}

    def height_needed(self) -> int:
        """The rows for the settings; few for a single run's, which differ from nothing."""
        rows = len(self._changed.settings()) + len(self.view.comparison.sources)
        return min(rows, 99 if len(self.view.runs) > 1 else 5)

    @property
    def _changed(self) -> CompareView:
        return replace(self.view, everything=False, row=0)

    def paint(self, width: int, height: int) -> list[Line]:
        """The table, with the number of differences in the frame."""
        self.note = ""
        if not self.view.runs:
            return []
        self.title = "changed settings" if len(self.view.runs) > 1 else "settings"
        self.note = settings_note(self.view)
        return render.settings_lines(self._changed, width, height)


def settings_note(view: CompareView) -> str:
    """How many settings there are, and how many differ between runs."""
    same = len(view.comparison.same)
    if len(view.runs) == 1:
        return count_of(same, "setting")
    results = len(view.comparison.by_recipe)
    more = f", {results} as a result" if results else ""
    return f"{len(view.comparison.differing)} differ{more}, {same} equal"


class CurvesPanel(ComparePanel, ChartStack):
    """Charts of the chosen metrics, stacked, with a shared crosshair."""

    two_columns = 90
    wheel = 1
    unseen = OF_PAGE | {"filter"}

    class Resized(Message):
        """The screen is to draw the curves for another size."""

    @dataclass
    class Clicked(Message):
        """The screen is to choose a chart and to put the crosshair at a position in it."""

        chart: int
        x: float

    @property
    def metric(self) -> str:
        return self.view.metric

    @property
    def pixels(self) -> int:
        """The width of a chart in pixel columns."""
        return max(2, 2 * (self.chart_width(len(self.view.metrics)) - LABELS))

    @property
    def _data_width(self) -> int:
        """The cells of each chart: those for which the curves were read."""
        return (self.view.charts.wide or self.pixels) // 2 + LABELS

    def on_resize(self) -> None:
        """Request curves for the new width."""
        self.post_message(self.Resized())

    def _rows(self) -> list[Row]:
        """The rows of charts that fit, including the chosen one."""
        view = self.view
        return self.rows(len(view.metrics), view.chart, self.inner.height - 1, TALL)

    def in_sight(self) -> tuple[str, ...]:
        """The metrics whose charts fit, including the chosen one."""
        metrics = self.view.metrics
        return (
            tuple(metrics[index] for charts, _ in self._rows() for index in charts)
            if metrics
            else ()
        )

    def _description(self) -> str:
        """Where the crosshair is and how the curves are drawn, as a note in the frame."""
        view = self.view
        smooth = f"smooth {view.smoothing:g}, numbers raw".replace("0.", ".")
        parts = [f"at {render.position_text(view.axis, view.x)}"]
        parts += ["seeds as bands"] if view.bands else []
        parts += [smooth] if view.smoothing else []
        return " · ".join(parts)

    def copy_text(self) -> str:
        """Return the chosen metric of each run at the crosshair."""
        view = self.view
        rows = [f"{view.metric} at {view.axis} {view.x:g}"]
        for run in view.runs:
            value, step = view.value_at_x(view.metric, (run.id,))
            rows.append(f"{view.name(run)}\t{value}\tstep {step}")
        return "\n".join(rows)

    def paint(self, width: int, _height: int) -> list[Line]:
        """The charts that fit, then the axis."""
        view = self.view
        self.note = self._description()
        count = len(view.metrics)
        if not count:
            return [[("No metrics are recorded yet." if view.runs else "reading", "label")]]
        rows, width = self._rows(), self._data_width
        lines = self.stacked(rows, width, self._chart)
        more = count - sum(len(charts) for charts, _ in rows)
        self.title = f"curves · {more} more ↕" if more > 0 else "curves"
        span = view.charts.span
        ticks = ticks_of(span, width - LABELS, view.axis)
        axis = axis_line(render.position_text(view.axis, span), width, ticks)
        return [*lines, *side_by_side([[axis]] * self.columns(count), width)]

    def _chart(self, index: int, width: int, height: int) -> list[Line]:
        view = self.view
        key = view.metrics[index]
        chart = view.charts.charts.get(key)
        if chart is None:
            return [[(f" {key}: reading", "label")], *([[]] * (height - 1))]
        log, listed = key in self.log_metrics, render.listed_readouts(key, view, width) * self.alone
        size = (width - LABELS, max(1, height - 1 - len(listed)))
        content = (chart, size, view.columns, view.column, log)
        plotted = self.cache.latest(
            key, content, lambda: render.plot_of(key, chart, view, *size, log=log)
        )
        title, *lines = render.chart_lines(key, view, plotted, width, log=log)
        return [title, *listed, *lines]

    def on_click(self, event: events.Click) -> None:
        """Choose the clicked chart and move the crosshair there."""
        if at := self.chart_at(event.offset):
            width = self._data_width - LABELS
            x = cross_position(at[1] - LABELS, self.view.charts.span, width)
            self.post_message(self.Clicked(at[0], x))


class ComparePagePanel(ComparePanel, PagesPanel):
    """One of the pages, with the page names on top."""

    titles: ClassVar = {page: page for page in PAGES}
    unseen = OF_CURVES

    def _note(self) -> str:
        """A note in the frame on what the page shows."""
        view = self.view
        at = view.comparison.at
        several = view.base is not None and len(view.runs) > 1
        base = f"Δ to {view.column_name(view.base_column)}" if several else ""
        mean = "means over seeds" if view.bands else "raw values"
        notes = {
            "settings": settings_note(view) + " · ⏎ all or changed" * several,
            "ranking": base,
            "metrics": f"{mean} at {at}" + f" · {base}" * several,
            "answers": f"up to {at} · n p prompt",
        }
        return notes[view.page] if at else ""

    def height_needed(self, width: int) -> int:
        """The lines of the page and its frame; of a long table as many as there are."""
        if self.view.page == "metrics":  # 100 µs a row
            return len(self.view.rows) + 4
        return len(self.paint(max(10, width - 2), 99)) + 2

    def topic(self) -> str:
        rows = self.view.rows
        on_metric = self.view.page == "metrics" and rows
        return f"metric:{rows[min(self.view.row, len(rows) - 1)].key}" if on_metric else ""

    def paint(self, width: int, height: int) -> list[Line]:
        """The page names, then the current page once the runs have been read."""
        self.title, self.note = self.view.page, self._note()
        draw = {
            "ranking": render.ranking_lines,
            "metrics": render.metrics_lines,
            "settings": render.settings_lines,
            "answers": render.completions_lines,
        }[self.view.page]
        reading: list[Line] = [[("reading", "label")]]
        lines = draw(self.view, width, height - 1) if self.view.runs else reading
        return [self.strip_line(), *lines]

    def copy_text(self) -> str:
        """Return the visible part of the page."""
        return plain_text(self.paint(max(40, self.inner.width), 400)[1:])


class MetricsPanel(ComparePanel, can_focus=False):
    """The metrics, beside a page that leaves space for them."""

    unseen = OF_PAGE | OF_CURVES

    def paint(self, width: int, height: int) -> list[Line]:
        """The table from its first row on."""
        view = replace(self.view, row=-1)
        self.note = f"means over seeds at {view.comparison.at}" * view.bands
        return render.metrics_lines(view, width, height) if view.runs else []


class CardPanel(ComparePanel):
    """Shown when there is nothing to compare: how to add runs."""

    def paint(self, width: int, height: int) -> list[Line]:
        return card("No runs to compare yet.", OFFERS, width, height)
