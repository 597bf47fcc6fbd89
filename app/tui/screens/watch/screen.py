"""The Watch screen: phase bar, narrator, curves, answers, groups, alerts and log."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from textual import work
from textual.app import ComposeResult
from textual.containers import Grid
from textual.reactive import reactive

from grpo_tui.app.feed.replay import ReplayFeed
from grpo_tui.app.feed.snapshot import Snapshot
from grpo_tui.app.feed.stored import snapshot_of
from grpo_tui.app.text.safe_text import safe
from grpo_tui.app.tui.dialogs.help.subject import HelpSubject
from grpo_tui.app.tui.dialogs.picker import Picker, metric_items
from grpo_tui.app.tui.exporting import Export, chart_exports, file_stem, page_export
from grpo_tui.app.tui.keys import bindings
from grpo_tui.app.tui.messages import MetricRequested, RolloutOpened
from grpo_tui.app.tui.screens.base import Entry
from grpo_tui.app.tui.screens.run_keys import (
    CONTINUE_KEY,
    ControlledRun,
    ControlScreen,
)
from grpo_tui.app.tui.screens.watch.panels import (
    AlertsLog,
    CompletionsPanel,
    Curves,
    Groups,
    NarratorLine,
    PhaseBar,
    WatchPanel,
)
from grpo_tui.app.tui.screens.watch.render import largest_group, overview_width
from grpo_tui.app.tui.screens.watch.state import Layout, WatchState, curves_of, layout_of
from grpo_tui.app.tui.store.reader import reporting
from grpo_tui.app.tui.tour import TourLine
from grpo_tui.app.tui.widgets.find_bar import FindBar
from grpo_tui.app.tui.widgets.list_panel import ListPanel

BARS = 3  # lines of tabs, phases and keys
NO_GROUPS = (0, 0, 0)  # the most answers to a prompt, prompts of a step, cells of their overview
# actions that need a run
READING = frozenset({"prompt(1)", "step(-1)", "metrics", "open", "mute"})


class WatchScreen(ControlScreen):
    """One run, live or stored."""

    mode = "watch"
    find_hint = "find charts by name, key or everyday words; answers: 4 / on Rollouts"
    CSS_PATH = "watch.tcss"
    BINDINGS = bindings("watch")

    view: reactive[WatchState] = reactive(WatchState, repaint=False, init=False, always_update=True)

    def __init__(self) -> None:
        super().__init__()
        self._run = ""  # the id of the run on screen
        self._seeking = 0  # the step that is being read
        self._largest: tuple[int, ...] = NO_GROUPS
        self._layout: Layout | None = None
        self._was_left = False  # for another screen, not for a dialog

    def body(self) -> ComposeResult:
        """The phases and sentences, then a grid of panels."""
        yield PhaseBar(id="phase")
        yield NarratorLine(id="narrator")
        with Grid(id="panels"):
            yield Curves("curves", id="curves")
            yield CompletionsPanel("answers", id="answers")
            yield Groups("groups", id="groups")
            yield AlertsLog("alerts · log", id="alerts")

    def show(self, snapshot: Snapshot) -> None:
        """Pass the snapshot to the panels."""
        if snapshot.head.id != self._run:
            if self._run:  # another run begins with all panels and all charts
                self.minimize()
                self._end_filter()
            self._run, self._largest = snapshot.head.id, NO_GROUPS
            self._return()
        bar = self.key_bar
        bar.hidden = self.unused_controls(active=snapshot.active and not snapshot.reading)
        if snapshot.status == "empty":
            bar.hidden |= READING
        if not snapshot.alerts:
            bar.hidden |= {"mute"}
        replayed = {"pause": "pause"} if self.replay is not None else {}
        paused = ControlledRun.of(snapshot).pausing
        bar.renamed = replayed | (CONTINUE_KEY if paused else {})
        self._draw(snapshot=snapshot)

    def on_screen_suspend(self) -> None:
        """Note whether another screen or a dialog comes."""
        self._was_left = self.app.current_mode != self.mode

    def on_screen_resume(self) -> None:
        """Reorder the charts: they keep their places only while one looks."""
        if self._was_left:
            self.query_one(Curves).reorder()

    @property
    def replay(self) -> ReplayFeed | None:
        """The feed, if it is a recorded run that is played again."""
        session = self.workbench.session
        return session.feed if session and isinstance(session.feed, ReplayFeed) else None

    @property
    def ready(self) -> bool:
        """Whether the run has been read up to its present."""
        return self.workbench.session is None or self.workbench.session.opened

    def check_action(self, action: str, _parameters: tuple[object, ...]) -> bool | None:
        """Offer speed in a replay, what needs an engine elsewhere, and a way back from the past."""
        if action == "pace":
            return self.replay is not None
        if action in ("checkpoint", "stop"):
            return self.replay is None
        return True

    @property
    def _on_groups(self) -> bool:
        return self.focused is self.query_one(Groups)

    def _draw(self, **changes: Any) -> None:
        if self.is_mounted:
            self.update(on_groups=self._on_groups, **changes)

    def watch_view(self, old: WatchState, new: WatchState) -> None:
        """Pass the view to every panel."""
        if old.past is not new.past:
            self.refresh_bindings()
        for panel in self.query(WatchPanel):
            panel.view = new
        for groups in (new.step.groups, new.groups.groups):
            sizes = largest_group(groups), len(groups), overview_width(groups)
            self._largest = tuple(map(max, self._largest, sizes))
        self._arrange()

    def _size_classes(self) -> None:
        super()._size_classes()
        self._arrange()

    def _arrange(self) -> None:
        """Share the space by the largest step of the run, so that no panel moves at each step."""
        answers, groups, cells = self._largest
        width, height = self.app.size
        height -= BARS + sum(line.outer_size.height for line in self.query(TourLine))
        height -= sum(bar.display for bar in self.query(FindBar))
        focused = (self.focused.id if self.focused else None) or ""
        layout = layout_of(
            width, height, answers=answers, groups=groups, cells=cells, focused=focused
        )
        if layout == self._layout:
            return
        self._layout = layout
        self.query_one(NarratorLine).styles.height = layout.sentences
        grid = self.query_one("#panels").styles
        grid.grid_size_columns = len(layout.columns)
        grid.grid_columns = " ".join(map(str, layout.columns))
        grid.grid_rows = " ".join(map(str, layout.rows))
        for panel in self.query_one("#panels").children:
            columns, rows = layout.spans.get(panel.id or "", (1, 1))
            panel.styles.column_span, panel.styles.row_span = columns, rows

    def on_descendant_focus(self) -> None:
        """Show the answers of the groups that have the focus, or those that are being sampled."""
        if self._on_groups != self.view.on_groups:
            self._draw()
        self._arrange()

    def tick(self, now: float) -> None:
        """Update the elapsed time of the phase."""
        self.query_one(PhaseBar).now = now

    def shown_rollout(self) -> RolloutOpened | None:
        self._draw()  # what the panel has may be of an earlier moment
        return self.query_one(Groups).selected_rollout()

    def entries(self) -> Iterator[Entry]:
        """The prompts on screen, by their answers as well."""
        for index, group in enumerate(self.query_one(CompletionsPanel).snapshot.groups):
            texts = " ".join(rollout.text for rollout in group.rollouts)
            yield Entry(
                f"Prompt {index + 1}: {safe(group.prompt_text, ' ')}",
                "",
                also=texts,
                go=partial(self._draw, prompt=index),
            )

    def exports(self) -> Iterator[Export]:
        """The chart under the cursor, and the run as a page if it is stored."""
        curves, session = self.query_one(Curves), self.workbench.session
        head, chart, log = self.snapshot.head, curves.chosen, curves.log_metrics
        if chart is not None:
            read = partial(curves_of, chart, self.snapshot)
            stem = file_stem(f"{head.name}-{chart.title}")
            yield from chart_exports(chart.title, stem, read, "step", log)
        if session is not None and session.run:
            description = f"{head.name or head.id}, as one HTML file for browsers"
            yield page_export(self.workbench.store, [head], description)

    def help_subject(self, topic: str) -> HelpSubject:
        """The run without the values after an earlier step that is on screen."""
        subject, past = super().help_subject(topic), self.view.past
        if past is None:
            return subject
        series = {
            key: values.until(past.step)
            for key, values in subject.run.series.items()
            if topic.endswith(key.rpartition("/")[2])
        }
        return replace(subject, run=replace(subject.run, series=series))

    def find(self, text: str) -> None:
        """Keep the charts of the metrics that match, of all that the run records."""
        self.query_one(Curves).filter = text
        self.key_bar.leads = "all charts" if text else ""
        self._arrange()  # the search line may have been closed

    def _end_filter(self) -> None:
        if self.query_one(Curves).filter:
            self.query_one(FindBar).close()
            self.find("")

    def action_prompt(self, by: int) -> None:
        """Select another prompt, wrapping around at the ends."""
        count = len(self.view.step.groups)
        if count:
            self._draw(prompt=(min(self.view.prompt, count - 1) + by) % count)

    def action_step(self, by: int) -> None:
        """Look at an earlier or later step; a replay plays on from there."""
        replay = self.replay
        if replay is None:
            self._go_to((self._seeking or self.view.step.groups_step) + by)
        else:
            self._go_to((replay.sought if replay.catching_up else self.snapshot.step) + by)

    def _go_to(self, step: int) -> None:
        if self.replay is not None:
            self.replay.seek(min(step, self.snapshot.head.total_steps or step))
            self.workbench.frame_now()
        elif step > self.snapshot.step:
            self._return()
        elif self.workbench.session is not None and self.snapshot.step:
            self._seeking = max(1, step)
            self._read_step(self.workbench.session.run, self._seeking)

    def action_seek_to(self) -> None:
        """Ask for a step, and go there."""
        hint = "A step, or -50 for 50 steps earlier; esc returns to the present."
        self.input_step(hint, self.view.step.groups_step, self._go_to)

    def action_escape(self) -> None:
        """Return to the step that the run is at, before anything else."""
        if self.view.past is not None and not self.query_one(FindBar).display:
            self._return()
        else:
            super().action_escape()
            self._arrange()

    def _return(self) -> None:
        self.workers.cancel_group(self, "past")
        self._seeking = 0
        self._draw(past=None)

    @work(exclusive=True, group="past")
    async def _read_step(self, run: int, step: int) -> None:
        with reporting(self):
            past = await self.read("past", snapshot_of, run, step)
            if past.groups:
                self._draw(past=replace(past, head=self.snapshot.head))
            else:
                self.notify(f"Step {step} has no recorded groups.")
        if self._seeking == step:  # else a later one is being read
            self._seeking = 0

    def action_pace(self, factor: float) -> None:
        """Replay faster or slower."""
        if self.replay is not None:
            self.replay.play_at(self.replay.speed * factor)
            self.workbench.frame_now()

    def action_metrics(self) -> None:
        """Choose among all metrics that the run records, and show the chosen one alone."""
        if not self.snapshot.series:
            self.notify("The metrics of a run begin after step 1.")
            return
        chosen = self.query_one(Curves).chosen
        picker = Picker(
            "metrics",
            metric_items(self.snapshot.series),
            verb="draw",
            cursor=chosen.keys[0] if chosen else "",
        )
        self.app.push_screen(
            picker, lambda result: self.show_alone(result.value) if result is not None else None
        )

    def show_alone(self, metric: str) -> None:
        """Show a metric alone."""
        curves = self.query_one(Curves)
        self._end_filter()
        curves.go_to(metric)
        curves.focus()
        if self.maximized is not curves:
            self.maximize(curves, container=False)

    def receive(self, message: MetricRequested) -> None:
        """Show the metric that the palette found."""
        self.workbench.frame_now()
        self.show_alone(message.key)

    def on_list_panel_chosen(self, message: ListPanel.Chosen) -> None:
        """Show the prompt that is chosen among the groups."""
        self._draw(prompt=message.item)
