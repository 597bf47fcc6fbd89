"""The panels of Watch; each draws a snapshot, moves its cursor and posts what a key asks for."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from textual import events
from textual.reactive import reactive

from grpo_engine.events import Group
from grpo_tui.app.feed.snapshot import LogLine, Snapshot, StepGroup, StepRollout
from grpo_tui.app.inspector.groups import is_greedy
from grpo_tui.app.latest import Latest
from grpo_tui.app.text.numbers import clamped
from grpo_tui.app.text.safe_text import safe
from grpo_tui.app.tui.keys import bindings
from grpo_tui.app.tui.messages import (
    MuteRequested,
    RolloutOpened,
)
from grpo_tui.app.tui.screens.watch import render
from grpo_tui.app.tui.screens.watch.state import (
    Chart,
    WatchState,
    by_severity,
    charts_of,
    counted,
    fair_limit,
    group_at,
    largest_push,
    last_step,
    log_entries,
    matching,
    no_push_reason,
)
from grpo_tui.app.tui.widgets.charts.plot import LABELS, axis_line, ticks_of
from grpo_tui.app.tui.widgets.charts.stack import ChartStack, side_by_side
from grpo_tui.app.tui.widgets.list_panel import ListPanel
from grpo_tui.app.tui.widgets.panel import BarPanel, Line, Panel, hint, paragraph
from grpo_tui.experiments.values import AlertView, BoardRollout

AXIS_FROM = 16  # lines with which there is an axis of steps
ROOMY, TIGHT = 4, 3  # lines of a chart
ALERT_LINES = 3  # of an alert, unless the panel is high
LOG_IN_FULL = 16  # lines of the panel from which a line of the log may take two
ORIGINS = {"train": "prompt", "eval": "a held-out problem", "pinned": "pinned prompt"}


class WatchPanel(Panel):
    """A panel that draws the screen's view."""

    view: reactive[WatchState] = reactive(WatchState, always_update=True)

    @property
    def snapshot(self) -> Snapshot:
        """The run at the moment that the panel shows."""
        return self.view.snapshot


class Curves(WatchPanel, ChartStack, ListPanel):
    """The charts of a run, with a cursor for `?`; scrolls with the cursor."""

    two_columns = 76
    BINDINGS = bindings("curves")

    added: reactive[tuple[str, ...]] = reactive(())  # metrics that have no chart by themselves
    filter: reactive[str] = reactive("")  # words of a search
    _order: tuple[str, ...] = ()  # titles of the charts that have been on screen

    def count(self) -> int:
        return len(self.charts)

    @property
    def charts(self) -> tuple[Chart, ...]:
        """The charts in their order, which stays as it is while one looks."""
        return self._charts(self.snapshot)

    def _charts(self, snapshot: Snapshot) -> tuple[Chart, ...]:
        added = (*self.added, *(snapshot.series if self.filter else ()))
        return matching(charts_of(snapshot, added, self._order), self.filter)

    def reorder(self) -> None:
        """Take the order of what is recorded by now; the cursor stays on its chart."""
        chosen, self._order = self.chosen, ()
        self._order = () if self.filter else tuple(chart.title for chart in self.charts)
        if chosen is not None:
            self.cursor = self.charts.index(chosen)
        self.refresh()

    def watch_filter(self) -> None:
        """Begin with the first chart that matches."""
        self.cursor = 0

    @property
    def metric(self) -> str:
        return self.chosen.keys[0] if self.chosen else ""

    @property
    def chosen(self) -> Chart | None:
        """The chart under the cursor."""
        charts = self.charts
        return charts[self.selected] if charts else None

    def go_to(self, metric: str) -> None:
        """Choose the chart of a metric, which is added if there is none."""
        if not any(metric in chart.keys for chart in self.charts):
            self.added = (*self.added, metric)
        indices = (i for i, chart in enumerate(self.charts) if metric in chart.keys)
        self.cursor = next(indices, self.cursor)

    def watch_view(self, old: WatchState, new: WatchState) -> None:
        """Keep the cursor on its chart, and charts where they are; another run begins anew."""
        before = self._charts(old.snapshot)
        same_run = old.snapshot.head.id == new.snapshot.head.id
        # before the first step has ended only a few metrics are known
        if not same_run or old.snapshot.reading or not old.snapshot.step:
            self._order = ()
        titles = [chart.title for chart in self.charts]
        if not self.filter:
            self._order = tuple(dict.fromkeys((*self._order, *titles)))
        if [chart.title for chart in before] != titles or not same_run:
            chosen = next((chart.title for chart in before[self.cursor :] if same_run), "")
            self.cursor = titles.index(chosen) if chosen in titles else 0

    def topic(self) -> str:
        """Return the topic of the selected chart's first metric."""
        return f"metric:{self.metric}" if self.metric else "screen:watch"

    def paint(self, width: int, height: int) -> list[Line]:
        """The charts that fit, row by row, in one column or two."""
        snapshot, charts = self.snapshot, self.charts
        selected = clamped(self.cursor, len(charts))
        if not charts:
            self.note = ""
            text = render.waiting(snapshot, "Curves appear here after step 1.")
            if self.filter and not snapshot.reading:
                text = (
                    f"No metric of this run matches “{safe(self.filter)}”. "
                    "Answers are searched on Rollouts (4 /)."
                )
            return hint(text, width)
        axis = 1 if height >= AXIS_FROM else 0
        columns, cells = self.columns(len(charts)), self.chart_width(len(charts))
        needed = ROOMY if height >= 6 * ROOMY else TIGHT
        functions = len(charts[0].keys) - 1
        if height < ROOMY + functions + TIGHT:  # their names are in the title, if they fit
            functions = 0
        more = functions + ROOMY - needed
        rows = self.rows(len(charts), selected, height - axis, needed, more)

        def draw(index: int, width: int, height: int) -> list[Line]:
            return self._chart(charts[index], index == selected, width, height)

        lines = self.stacked(rows, cells, draw)
        hidden = len(charts) - sum(len(members) for members, _ in rows)
        left = f" · {hidden} more {'↑↓' if self.alone else '↓'}" if hidden > 0 else ""
        left = (f" · at step {self.view.past.step}" if self.view.past else "") + left
        self.note_first(f"values and lines smoothed, dots as recorded{left}", f"smoothed{left}")
        if not axis:
            return lines
        end = last_step(snapshot)
        ticks = ticks_of(end, cells - LABELS)
        below = [[axis_line(f"step {end}", cells, ticks)]] * columns
        return [*lines, *side_by_side(below, cells)]

    def _chart(self, chart: Chart, selected: bool, width: int, height: int) -> list[Line]:
        """The lines of a chart, drawn again only where their content changes."""
        snapshot, chosen = self.snapshot, selected and self.has_focus
        at = self.view.past.step if self.view.past else None
        look = width, height, chosen, at, chart.keys[0] in self.log_metrics
        key = chart, snapshot.series, snapshot.head, snapshot.weights, look
        return self.cache.latest(
            chart.title, key, lambda: render.chart_lines(chart, snapshot, *look)
        )

    def copy_text(self) -> str:
        """Return the values of the chosen chart's first metric by step."""
        series = self.snapshot.series.get(self.metric)
        if series is None:
            return ""
        rows = zip(series.steps, series.values, strict=True)
        return "\n".join([f"step\t{self.metric}", *(f"{step}\t{value}" for step, value in rows)])

    def action_move(self, rows: int, columns: int) -> None:
        """Move the cursor by rows of charts, or by charts."""
        by = 1 if self.alone else self.columns(self.count())
        super().action_move(rows * by + columns, 0)

    def on_click(self, event: events.Click) -> None:
        """Choose the chart that was clicked."""
        if at := self.chart_at(event.offset):
            self.cursor = at[0]


class GroupPanel(WatchPanel, ListPanel):
    """A panel with a cursor on an answer to the prompt in focus."""

    @property
    def group(self) -> StepGroup | None:
        """The group of the selected prompt."""
        return group_at(self.snapshot, self.view.prompt)

    def count(self) -> int:
        return len(self.group.rollouts) if self.group else 0

    def selected_rollout(self) -> RolloutOpened | None:
        """The request that opens the selected answer; None without one."""
        group = self.group
        if group is None or not group.rollouts:
            return None
        rollout = group.rollouts[self.selected].index
        return RolloutOpened(0, self.snapshot.groups_step, group.origin, group.index, rollout)

    def action_open(self) -> None:
        """Open the selected answer."""
        if request := self.selected_rollout():
            self.post_message(request)

    def copy_text(self) -> str:
        """Return the text of the selected answer."""
        return self.group.rollouts[self.selected].text if self.group else ""


class CompletionsPanel(GroupPanel):
    """The answers to one prompt, updated live; below them those to the next ones, if they fit."""

    BINDINGS = bindings("answers")

    def __init__(self, title: str, **kwargs: Any) -> None:
        super().__init__(title, **kwargs)
        self.cache = Latest()
        self._lines = 1  # of an answer while it is sampled: as many as the longest one had so far

    @property
    def snapshot(self) -> Snapshot:
        return self.view.completions

    help_topic = "panel:answers"

    def watch_view(self, old: WatchState, new: WatchState) -> None:
        """Show a new prompt from its first answer."""
        if old.snapshot.head.id != new.snapshot.head.id:
            self._lines = 1
        if old.prompt != new.prompt:
            self._top = 0
            self.set_reactive(CompletionsPanel.cursor, 0)

    def paint(self, width: int, height: int) -> list[Line]:
        """The prompt, then each answer that fits, in full where there is space."""
        group = self.group
        if group is None:
            self.title, self.note = "answers", ""
            text = "Answers appear here while they are sampled, one below the other."
            return hint(render.waiting(self.snapshot, text), width)
        # groups of an evaluation go on from greedy answers to sampled ones
        number = "" if group.origin == "eval" else f" {group.index + 1}"
        self.title = f"answers to {ORIGINS.get(group.origin) or safe(group.origin, ' ')}{number}"
        self.note = f"step {self.snapshot.groups_step}"
        lines = render.prompt_lines(group, width, height)
        lanes = self._lanes(group, width, height - len(lines))
        blocks = [
            render.with_edge(lane, self.has_focus and index == self.selected)
            for index, lane in enumerate(lanes)
        ]
        lines += self.listed(blocks, height - len(lines), self.selected, above=len(lines))
        return lines + self._next_lines(group, width, height - len(lines))

    def _next_lines(self, group: StepGroup, width: int, height: int) -> list[Line]:
        """The following prompts with their answers, as many as there is space for."""
        groups = self.snapshot.groups
        at = next(index for index, item in enumerate(groups) if item is group)
        lines: list[Line] = []
        for item in (*groups[at + 1 :], *groups[:at]):
            left = height - len(lines) - 2
            if not item.rollouts or left < len(item.rollouts):
                break
            lines += [[], render.prompt_title(item, width)]
            for lane in self._lanes(item, width, left):
                lines += render.with_edge(lane, marked=False)
        return lines

    def _lanes(self, group: StepGroup, width: int, height: int) -> list[list[Line]]:
        """Each answer; those that are too long for all to fit are cut to the same lines.

        While they are sampled each keeps its place: it has the lines of the longest one so far.
        """
        rollouts: Sequence[StepRollout] = group.rollouts
        lanes = [
            self.cache.latest(
                f"{group.index} {rollout.index}",
                (rollout, largest_push(group), width, height),
                partial(render.lane_lines, rollout, width - 1, max(1, height), group),
            )
            for rollout in rollouts
        ]
        limit = fair_limit([*map(len, lanes)], height)
        padded_to = 0
        if rollouts:
            most = max(1, height // len(rollouts))
            self._lines = max(self._lines, min(most, max(map(len, lanes))))
            if any(isinstance(rollout, BoardRollout) for rollout in rollouts):
                padded_to = limit = min(most, self._lines)
        cut = (
            lane if len(lane) <= limit else render.lane_lines(rollout, width - 1, limit, group)
            for lane, rollout in zip(lanes, rollouts, strict=True)
        )
        return [[*lane, *[[]] * (padded_to - len(lane))] for lane in cut]


class Groups(GroupPanel):
    """All prompts of the step in an overview; the cursor is on an answer of the one in focus."""

    BINDINGS = bindings("groups")

    @property
    def snapshot(self) -> Snapshot:
        return self.view.groups

    help_topic = "panel:groups"

    def paint(self, width: int, height: int) -> list[Line]:
        """A header, the groups around the selected one, and the signal over the last steps."""
        snapshot, groups = self.snapshot, self.snapshot.groups
        if not groups:
            self.title, self.note = "groups", ""
            text = "Each prompt of a step gets a row here, each answer a cell: ▲ pushed up, ▼ down."
            return hint(text, width)
        number, size = render.number_width(groups), render.largest_group(groups)
        # cells of an answer: with its advantage, with its arrow, or less
        cell = next((cell for cell in (7, 2) if size * cell <= width - number - render.MEAN), 1)
        # the mean stays beside the answers, however wide the panel is
        table = min(width, number + cell * size + 1 + render.MEAN)
        head = render.group_header(number, cell, size, table)
        foot = render.signal_line(snapshot, width) if height > 3 else []
        space = height - 1 - bool(foot)
        reasons = [*map(no_push_reason, groups)]
        below = len(groups) + sum(map(bool, reasons)) <= space
        selected = min(self.view.prompt, len(groups) - 1)
        linked = self.view.completions.groups_step == snapshot.groups_step
        blocks = []
        for index, group in enumerate(groups):
            focused = linked and index == selected
            marked = self.selected if index == selected and self.has_focus else None
            has_prompts, reason = width - table >= render.SHORTEST_PROMPT, reasons[index]
            line = render.group_line(group, table, number, cell, focused=focused, marked=marked)
            if reason and not (below or has_prompts or focused or marked is not None):
                line = render.folded_line(group, reason, table, number)
                reason = ""
            if has_prompts:
                line += render.prompt_of(group, width - table, focused, reason * (not below))
            blocks.append([line, *[render.reason_line(reason, width)] * bool(reason and below)])
        lines = [head, *self.listed(blocks, space, selected, above=1)]
        names = {"train": "groups", "eval": "held-out"}
        self.title = names.get(groups[0].origin, "pinned")
        if isinstance(groups[0], Group) and groups[0].origin == "eval":
            self.title += ", greedy" if is_greedy(groups[0]) else ", sampled"
        step, hidden = snapshot.groups_step, len(groups) - len({*self._items} - {None})
        self.note_first(*[f"step {step} · {hidden} more"] * (hidden > 0), f"step {step}", f"{step}")
        return [*lines, *([[]] * (height - 1 - len(lines))), foot] if foot else lines

    def action_move(self, rows: int, columns: int) -> None:
        """Select another prompt, or another answer to it."""
        if columns:
            super().action_move(columns, 0)
        elif last := len(self.snapshot.groups):
            self.choose(max(0, min(last - 1, self.view.prompt + rows)))

    def choose(self, item: int) -> None:
        """Show another prompt."""
        self.post_message(self.Chosen(item))


class AlertsLog(WatchPanel, ListPanel):
    """Active alerts, then the log, newest first."""

    BINDINGS = bindings("log")

    @property
    def entries(self) -> list[AlertView | LogLine]:
        """Active alerts, muted ones, then log lines from the newest on."""
        snapshot = self.snapshot
        return [
            *by_severity(snapshot.open_alerts),
            *by_severity(snapshot.muted_alerts),
            *reversed(log_entries(snapshot)),
        ]

    def count(self) -> int:
        return len(self.entries)

    def topic(self) -> str:
        """Return the topic of the selected alert."""
        entry = self._entry()
        return f"alert:{entry.rule}" if isinstance(entry, AlertView) else "panel:log"

    def _entry(self) -> AlertView | LogLine | None:
        entries = self.entries
        return entries[self.selected] if entries else None

    def paint(self, width: int, height: int) -> list[Line]:
        """The entries that fit, including the selected one."""
        entries, selected, snapshot = self.entries, self.selected, self.snapshot
        self.note = counted(snapshot)
        if not entries:
            return paragraph("Alerts and log messages appear here.", width, 2, "label")
        active = len(snapshot.open_alerts) + len(snapshot.muted_alerts)
        visible = entries[: selected + height]

        def blocks(limit: int, rest: int) -> list[list[Line]]:
            return [
                render.entry_lines(
                    entry,
                    self.has_focus and index == selected,
                    width,
                    limit,
                    active=index < active,
                    rest=rest,
                )
                for index, entry in enumerate(visible)
            ]

        if len(visible) < height:  # there may be room for all in full
            full = blocks(height, height)
            if sum(map(len, full)) <= height:
                return self.listed(full, height, selected)
        limit = max(ALERT_LINES, 2 * height // 3 if len(visible) < height else height // 3)
        limit = max(1, min(limit, height // max(1, len(snapshot.open_alerts))))
        return self.listed(blocks(limit, 2 if height >= LOG_IN_FULL else 1), height, selected)

    def action_mute(self) -> None:
        """Mute or unmute the kind of the selected alert."""
        entry = self._entry()
        if isinstance(entry, AlertView):
            self.post_message(MuteRequested(entry.rule, not entry.muted))
        else:
            self.notify("Alerts can be muted, lines of the log cannot.")

    def copy_text(self) -> str:
        """Return the selected line."""
        entry = self._entry()
        if isinstance(entry, AlertView):
            return f"{entry.explanation} {entry.remedy}"
        return entry.text if entry else ""


class NarratorLine(WatchPanel, BarPanel, can_focus=False):
    """Whole sentences, as many as fit; only one that is longer than the panel is wrapped."""

    DEFAULT_CSS = "NarratorLine { height: 2; }"

    def paint(self, width: int, height: int) -> list[Line]:
        return render.sentence_lines(self.view.sentences, width, height)


class PhaseBar(WatchPanel, BarPanel, can_focus=False):
    """The step's phase, speed, duration and memory use in one line."""

    DEFAULT_CSS = "PhaseBar { height: 1; }"

    now: reactive[float] = reactive(0.0)

    def paint(self, width: int, _height: int) -> list[Line]:
        return [render.phase_line(self.snapshot, self.now, width)]
