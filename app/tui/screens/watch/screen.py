"""The Watch screen: phase bar, narrator, curves, answers, groups, alerts and log."""

import asyncio
from collections.abc import Iterator, Mapping
from functools import partial
from typing import ClassVar, Final

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Horizontal
from textual.message import Message
from textual.reactive import reactive

from grpo_tui.app.feed.narrator import narrate
from grpo_tui.app.feed.replay import ReplayFeed
from grpo_tui.app.feed.snapshot import LogLine, Snapshot
from grpo_tui.app.feed.stored import snapshot_of
from grpo_tui.app.text.safe_text import safe
from grpo_tui.app.tui.dialogs.export import Maker
from grpo_tui.app.tui.keys import unbound
from grpo_tui.app.tui.messages import MetricRequested, PromptFocused, RolloutOpened
from grpo_tui.app.tui.screens.base import Found
from grpo_tui.app.tui.screens.run_keys import (
    CONTROL_BINDINGS,
    CONTROLS,
    HELD,
    ControlledRun,
    ControlScreen,
)
from grpo_tui.app.tui.screens.watch import texts
from grpo_tui.app.tui.screens.watch.panels import Curves
from grpo_tui.app.tui.widgets.alerts_log import AlertsLog, with_closed
from grpo_tui.app.tui.widgets.find_bar import FindBar
from grpo_tui.app.tui.widgets.groups import Groups
from grpo_tui.app.tui.widgets.lanes import Lanes
from grpo_tui.app.tui.widgets.narrator_line import NarratorLine
from grpo_tui.app.tui.widgets.phase_bar import PhaseBar
from grpo_tui.experiments.errors import StoreError

# actions that need a run
READING = frozenset({"prompt(1)", "seek(-1)", "step(-1)", "aside(-1)", "explain_chart", "metrics",
                     "open", "explain_alert", "mute"})  # fmt: skip

REPLAYED: Final = {"pause": "pause", "present": "last step"}  # keys that act on a replay


class WatchScreen(ControlScreen):
    """One run, live or stored."""

    mode = "watch"
    CSS_PATH = "watch.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        *CONTROL_BINDINGS,
        Binding("f", "freeze", "freeze view", id="watch.freeze",
                tooltip="Freeze the view; the run continues"),
        Binding("n", "prompt(1)", "next prompt", id="watch.next",
                tooltip="Show the next prompt of the step", key_display="n p"),
        Binding("p", "prompt(-1)", "previous prompt", id="watch.previous", show=False,
                tooltip="Show the previous prompt of the step"),
        Binding("less_than_sign", "seek(-1)", "step", id="watch.back", key_display="< >",
                tooltip="The step before, while the run continues; in a replay, go there"),
        Binding("greater_than_sign", "seek(1)", "later step", id="watch.forth", show=False,
                tooltip="The step after"),
        Binding("left_curly_bracket", "seek(-10)", "ten steps", id="watch.back_far", show=False,
                tooltip="Ten steps earlier"),
        Binding("right_curly_bracket", "seek(10)", "ten steps later", id="watch.forth_far",
                show=False, tooltip="Ten steps later"),
        unbound("present", "latest step", "watch.present",
                "Back to the step that the run is at; in a replay, to its end"),
        Binding("right_square_bracket", "pace(2)", "speed", id="watch.faster", key_display="[ ]",
                tooltip="Replay twice as fast"),
        Binding("left_square_bracket", "pace(0.5)", "slower", id="watch.slower", show=False,
                tooltip="Replay half as fast"),
    ]  # fmt: skip

    frozen: reactive[bool] = reactive(False, repaint=False)
    place: reactive[int] = reactive(0, repaint=False)
    past: reactive[Snapshot | None] = reactive(None, repaint=False)  # the earlier step on screen

    def __init__(self) -> None:
        super().__init__()
        self._shown_run = ""
        self._seeking = 0  # the step that is being read
        self._taken: Snapshot | None = None  # the earlier step that Rollouts has shown

    def body(self) -> ComposeResult:
        """Two status lines, three panels side by side, alerts below."""
        yield PhaseBar(id="phase")
        yield NarratorLine(id="narrator")
        with Horizontal(id="panels"):
            yield Curves(id="curves")
            with Container(id="step"):
                yield Lanes(id="answers")
                yield Groups(id="groups")
        yield AlertsLog(id="alerts")

    def show(self, snapshot: Snapshot) -> None:
        """Pass the snapshot to the panels, unless the view is frozen."""
        if snapshot.head.id != self._shown_run:
            self._return()
        self._shown_run = snapshot.head.id
        self.query_one(PhaseBar).snapshot = snapshot
        bar = self.key_bar
        controlled = snapshot.active and not snapshot.reading
        bar.hidden = frozenset() if controlled else CONTROLS | {"freeze"}
        if snapshot.status == "empty":
            bar.hidden |= READING
        replayed = REPLAYED if self.replay is not None else {}
        bar.renamed = {**replayed, **HELD} if ControlledRun.of(snapshot).held else replayed
        if not self.frozen:
            self._hand_down(snapshot)

    @property
    def replay(self) -> ReplayFeed | None:
        """The feed, if it is a recorded run that is played again."""
        session = self.workbench.session
        return session.feed if session and isinstance(session.feed, ReplayFeed) else None

    @property
    def ready(self) -> bool:
        """Whether the run has been read up to its present."""
        return self.workbench.session is None or self.workbench.session.opened

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer speed in a replay, what needs an engine elsewhere, and a way back from the past."""
        if action == "pace":
            return self.replay is not None
        if action == "present":
            return self.replay is not None or self.past is not None
        if action in ("checkpoint", "stop"):
            return self.replay is None
        return super().check_action(action, parameters)

    def exports(self) -> Mapping[str, Maker]:
        """The curves as CSV, everything as JSON or Markdown."""
        shown, session = self.query_one(Curves).snapshot, self.workbench.session
        if shown.status == "empty" or session is None:
            return {}
        run, ask = session.run, self.workbench.reader.ask
        return {
            "csv": lambda: ask(lambda reader: texts.as_csv(reader, run, shown)),
            "json": lambda: ask(lambda reader: texts.as_json(reader, run, shown)),
            "md": lambda: texts.as_markdown(shown),
        }

    def _hand_down(self, snapshot: Snapshot) -> None:
        place = min(self.place, max(0, len((self.past or snapshot).groups) - 1))
        shown = self.past or snapshot
        groups = self.query_one(Groups)
        self.query_one(NarratorLine).sentences = self._sentences(snapshot, place)
        self.query_one(Curves).snapshot = snapshot
        groups.snapshot = shown.scored
        lanes = self.query_one(Lanes)
        lanes.snapshot = groups.snapshot if self.focused is groups else shown
        groups.marks = lanes.snapshot.groups_step == groups.snapshot.groups_step
        self.query_one(AlertsLog).snapshot = snapshot

    def on_descendant_focus(self) -> None:
        """Show the answers of the groups that have the focus, or those that are being sampled."""
        if not self.frozen:
            self._hand_down(self.snapshot)

    def _sentences(self, snapshot: Snapshot, place: int) -> tuple[str, ...]:
        """What happens in the step on screen, or what happened in an earlier one."""
        if self.past is None:
            return narrate(snapshot, place)
        back = f"Step {self.past.step}, seen from step {snapshot.current_step}. esc returns."
        return back, *narrate(self.past, place)

    def tick(self, now: float) -> None:
        """Update the elapsed time of the phase, and of the environments that are waited for."""
        self.query_one(PhaseBar).now = now
        self.query_one(Lanes).now = now

    def places(self) -> Iterator[Found]:
        """The prompts on screen, by their answers as well, and the lines of the log."""
        for place, group in enumerate(self.query_one(Lanes).snapshot.groups):
            answers = " ".join(rollout.text for rollout in group.rollouts)
            yield Found(f"Prompt {place + 1}: {safe(group.prompt_text, ' ')}", "", also=answers,
                        go=partial(setattr, self, "place", place))  # fmt: skip
        log = self.query_one(AlertsLog)
        for line in reversed(with_closed(self.snapshot)):
            text = line.text if isinstance(line, LogLine) else line.explanation
            yield Found(f"Log: {safe(text, ' ')}", "", partial(log.go_to, line))

    def watch_place(self) -> None:
        """Show the selected prompt in all panels."""
        if not self.is_mounted:
            return
        self.query_one(Lanes).place = self.place
        self.query_one(Groups).place = self.place
        if not self.frozen:
            self.query_one(NarratorLine).sentences = self._sentences(self.snapshot, self.place)

    def watch_frozen(self, frozen: bool) -> None:
        """Show that the view is frozen, or catch up."""
        if not self.is_mounted:
            return
        if frozen:
            step = (self.past or self.snapshot).current_step
            sentence = f"Only the view is frozen, in step {step}. f unfreezes it."
            self.query_one(NarratorLine).sentences = (sentence,)
        else:
            self._hand_down(self.snapshot)

    def action_freeze(self) -> None:
        if self.frozen or self.snapshot.active:
            self.frozen = not self.frozen
        else:
            self.notify("The run has ended: there is nothing to freeze.")

    def action_prompt(self, by: int) -> None:
        """Select another prompt, wrapping around at the ends."""
        count = len((self.past or self.snapshot).groups)
        if count:
            self.place = (min(self.place, count - 1) + by) % count

    def action_seek(self, by: int) -> None:
        """Look at an earlier or later step; a replay plays on from there."""
        replay = self.replay
        if replay is None:
            here = self.past.step if self.past else self.snapshot.groups_step
            self._look_back((self._seeking or here) + by)
        else:
            here = replay.sought if replay.catching_up else self.snapshot.step
            replay.seek(min(here + by, self.snapshot.head.total_steps or here + by))
            self.workbench.frame_now()

    def action_present(self) -> None:
        """Return to the step that the run is at."""
        if self.replay is not None:
            self.action_seek(self.snapshot.head.total_steps)
        self._return()

    def action_escape(self) -> None:
        """Return to the step that the run is at, before anything else."""
        if self.past is not None and not self.query_one(FindBar).display:
            self._return()
        else:
            super().action_escape()

    def _return(self) -> None:
        self.workers.cancel_group(self, "past")
        self._seeking, self.past = 0, None

    def _look_back(self, step: int) -> None:
        if step > self.snapshot.step:
            self._return()
        elif self.workbench.session is not None and self.snapshot.step:
            self._seeking = max(1, step)
            self._read_step(self.workbench.session.run, self._seeking)

    @work(exclusive=True, group="past")
    async def _read_step(self, run: int, step: int) -> None:
        try:
            found = await self.workbench.reader.ask(lambda r: snapshot_of(r, run, step), "past")
        except asyncio.CancelledError:
            return
        except StoreError as error:
            self._seeking = 0
            self.notify(str(error), severity="error")
            return
        self._seeking = 0
        if found.groups:
            self.past = found
        else:
            self.notify(f"Step {step} has no recorded groups.")

    def watch_past(self) -> None:
        """Show the earlier step, or the present again."""
        if self.is_mounted:
            self.refresh_bindings()
            self._hand_down(self.snapshot)

    def action_pace(self, factor: float) -> None:
        """Replay faster or slower."""
        if self.replay is not None:
            self.replay.play_at(self.replay.speed * factor)
            self.workbench.frame_now()

    def action_zoom(self) -> None:
        """Show one chart alone, or zoom another panel."""
        curves = self.query_one(Curves)
        if self.maximized is None and self.focused is curves and curves.chosen is not None:
            self.explore(curves.chosen.keys[0])
        else:
            super().action_zoom()

    def explore(self, key: str, *, pick: bool = False) -> None:
        """Show a metric alone, with crosshair, zoom, smoothing and a choice of metrics."""
        session = self.workbench.session
        if session is None or not self.snapshot.head.id:
            self.notify("No run is open.", severity="warning")
        elif self.is_current:
            from grpo_tui.app.tui.screens.watch.explore import ExploreScreen

            self.app.push_screen(ExploreScreen(self.snapshot.head.id, key, pick=pick))

    @on(MetricRequested)
    def choose_metrics(self, message: MetricRequested) -> None:
        """Show all metrics to choose from."""
        message.stop()
        chosen = self.query_one(Curves).chosen
        self.explore(message.key or (chosen.keys[0] if chosen else "reward"), pick=not message.key)

    def going_to(self, mode: str) -> Message | None:
        """Rollouts follows to the earlier step on screen, once; then it stays where one moves."""
        past = self.past
        if mode != "rollouts" or past is None or past is self._taken or not past.groups:
            return None
        self._taken = past
        group = past.groups[min(self.place, len(past.groups) - 1)]
        return RolloutOpened(self.run_on_watch, past.groups_step, group.origin, group.index, 0)

    @on(RolloutOpened)
    def rollouts_follow(self) -> None:
        """An answer of the earlier step is opened, and stays open there."""
        self._taken = self.past

    def receive(self, message: Message) -> None:
        """Show the metric that the palette found."""
        if isinstance(message, MetricRequested):
            self.explore(message.key)

    @on(PromptFocused)
    def show_prompt(self, message: PromptFocused) -> None:
        """Show the prompt that a panel chose."""
        message.stop()
        self.place = message.place
