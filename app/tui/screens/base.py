"""WorkbenchScreen: what the five screens share.

A screen composes `body()` between the top bar and the key bar. While it is active, it receives each
new snapshot of the shown run in `show(snapshot)`, at most once a frame. Requests from other screens
arrive in `receive(message)`. Reads from the store go through `await
self.read(key, call, …)`.

A screen may offer `find(text)` for `/`, `entries()` for the palette and `exports()` for `e`. The
focused panel returns `topic()` for `?` and `copy_text()` for `y`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from textual.app import ComposeResult
from textual.screen import Screen
from textual.widgets import Input, TextArea
from textual.worker import Worker

from grpo_tui.app.feed.snapshot import Snapshot
from grpo_tui.app.tui.dialogs.ask import ask_text
from grpo_tui.app.tui.dialogs.exports import ExportingScreen
from grpo_tui.app.tui.dialogs.help.subject import HelpSubject
from grpo_tui.app.tui.keys import bindings
from grpo_tui.app.tui.lifecycle import RunApp
from grpo_tui.app.tui.messages import ScreenRequest
from grpo_tui.app.tui.tour import TourLine
from grpo_tui.app.tui.widgets.charts.stack import ChartStack
from grpo_tui.app.tui.widgets.find_bar import FindBar
from grpo_tui.app.tui.widgets.key_bar import KeyBar
from grpo_tui.app.tui.widgets.panel import Panel
from grpo_tui.app.tui.widgets.too_small import TooSmall, is_too_small
from grpo_tui.app.tui.widgets.top_bar import TopBar

T = TypeVar("T")
NARROW, SHORT, WIDE = 110, 30, 160
LOG_METRICS = "charts.log"  # the preference: metrics with a logarithmic axis


@dataclass(frozen=True, slots=True)
class Entry:
    """Something that the palette finds by its name, by other words, or by its help."""

    name: str
    help: str
    go: Callable[[], object]
    also: str = ""
    value: str = ""


class WorkbenchScreen(ExportingScreen, Screen[None]):
    """A screen of the workbench with its top bar and key bar."""

    mode = ""
    parent_mode = "runs"  # The target of esc and q for a user who came from nowhere else.
    find_hint = "find"
    ALLOW_IN_MAXIMIZED_VIEW = "TopBar, TourLine, KeyBar, FindBar, TooSmall"
    BINDINGS = bindings("screen")

    snapshot = Snapshot()
    opening: Worker[None] | None = None  # reads what the user has asked to see
    previous_mode: str = ""  # the screen on which the user asked for it
    _followed_run = ""  # the run on Watch that this screen has followed

    # -- for subclasses ---------------------------------------------------------------------

    def body(self) -> ComposeResult:
        """The widgets between the two bars."""
        raise NotImplementedError

    def show(self, snapshot: Snapshot) -> None:
        """Show a new snapshot of the shown run; only called while the screen is active."""

    def tick(self, now: float) -> None:
        """Update time-dependent parts; called with each frame."""

    def receive(self, message: Any) -> None:
        """Handle a request for this screen, delivered by the app."""

    def shown_rollout(self) -> ScreenRequest | None:
        """The request for the recorded answer on this screen, which the key of Rollouts opens."""
        return None

    def run_opened(self, run: str) -> None:
        """Follow another run that is on Watch; called once, when its id is known."""

    def again(self) -> None:
        """Respond to the key that leads to this screen, on this screen."""

    def action_open(self) -> None:
        """Open the item under the cursor of the focused panel; explain it unless there is more."""
        self.action_explain()

    def help_subject(self, topic: str) -> HelpSubject:
        """What help on a topic is about: the run on Watch."""
        run = self.snapshot
        health = None if run.status == "empty" else (run.head.name, run.health)
        return HelpSubject(topic, run, health)

    def find(self, text: str) -> None:
        """Search while the user types; an empty text ends the search."""

    def entries(self) -> Iterable[Entry]:
        """What the palette finds on this screen, besides what it finds on all of them."""
        return ()

    # -- shared -----------------------------------------------------------------------------

    @property
    def is_mounted(self) -> bool:
        """Whether its widgets are there; to Textual they are while they are being removed, too."""
        return super().is_mounted and self.display

    @cached_property
    def key_bar(self) -> KeyBar:
        """The bar of keys; still there for a read that ends after the screen was taken down."""
        return KeyBar()

    @property
    def ready(self) -> bool:
        """Whether what the keys act on has been read; keys that come earlier wait for it."""
        return self.opening is None or self.opening.is_finished

    @property
    def workbench(self) -> RunApp:
        """The app with its own type."""
        assert isinstance(self.app, RunApp)
        return self.app

    @property
    def run_on_watch(self) -> str | None:
        """The id of the run on Watch, or an empty text; None while it is being read."""
        session = self.workbench.session
        if session is None or not (session.run or session.feed.catching_up):
            return ""
        return session.feed.head.id if session.run else None

    @property
    def has_followed_run(self) -> bool:
        """Whether this screen has followed the run on Watch."""
        return self.run_on_watch == self._followed_run

    def compose(self) -> ComposeResult:
        yield TopBar()
        if self.workbench.tour is not None:
            yield TourLine()
        yield from self.body()
        yield FindBar(self.find_hint)
        yield self.key_bar
        yield TooSmall()

    def on_mount(self) -> None:
        """Mark the active tab."""
        self.query_one(TopBar).active = self.mode
        self._size_classes()

    def on_resize(self) -> None:
        """Collapse side panels on small terminals; a screen that is `-tiny` is covered."""
        self._size_classes()

    def _size_classes(self) -> None:
        size = self.app.size
        self.set_class(size.width < NARROW, "-narrow")
        self.set_class(size.height < SHORT, "-short")
        self.set_class(size.width >= WIDE, "-wide")
        self.set_class(is_too_small(*size), "-tiny")

    def frame(self, snapshot: Snapshot, now: float, mark: str) -> None:
        """Update the screen; called by the app with each frame."""
        if not self.query_children(TopBar):  # the program ends, and its widgets go
            return
        self.guide()
        bar = self.query_one(TopBar)
        bar.mark = mark
        if snapshot is not self.snapshot:
            self.snapshot = snapshot
            bar.snapshot = self.query_one(TooSmall).snapshot = snapshot
            self.show(snapshot)
        bar.elsewhere = self.workbench.elsewhere(snapshot.head.id)
        bar.key = self.key_of_other_run
        if not self.has_followed_run and (run := self.run_on_watch) is not None:
            self._followed_run = run
            if run:
                self.run_opened(run)
        self.tick(now)

    @property
    def key_of_other_run(self) -> str:
        """The key of Watch where it opens a live run that is not shown."""
        return "3" if self.mode == "watch" or self.workbench.began else ""

    def guide(self) -> None:
        """Show the tour's sentence for this screen, if there is a tour."""
        if (tour := self.workbench.tour) is not None:
            for line in self.query(TourLine):
                line.sentence = tour.sentence(self)

    def on_chart_stack_scale_switched(self, message: ChartStack.ScaleSwitched) -> None:
        """Switch the axis of a metric's charts, and remember that."""
        preferences = self.workbench.preferences
        metrics = {*(preferences.texts(LOG_METRICS) or ())} ^ {message.metric}
        preferences.remember(**{LOG_METRICS: sorted(metrics)})
        self._scale_charts()

    def _scale_charts(self) -> None:
        for panel in self.query(Panel):  # Textual finds a class by its first bases alone
            if isinstance(panel, ChartStack):
                panel.log_metrics = frozenset(self.workbench.preferences.texts(LOG_METRICS) or ())

    def on_screen_resume(self) -> None:
        """Draw what changed while the screen was inactive."""
        self._size_classes()
        self._scale_charts()
        for panel in self.query(Panel):
            panel.catch_up()
        self.workbench.frame_now()

    # -- common keys ------------------------------------------------------------------------

    def action_zoom(self) -> None:
        """Toggle the focused panel between full screen and its usual size."""
        if self.maximized is not None:
            self.minimize()
            return
        panel = self._focused_panel()
        if panel is not None:
            self.maximize(panel, container=False)

    def _focused_panel(self) -> Panel | None:
        nodes = self.focused.ancestors_with_self if self.focused is not None else ()
        return next((node for node in nodes if isinstance(node, Panel)), None)

    def action_find(self) -> None:
        """Open the search line, whose hint says what it finds here."""
        self.query_one(FindBar).open()

    def on_panel_opened(self) -> None:
        """Open what is under the cursor of a panel, unless a dialog is open by now."""
        if self.is_active:
            self.action_open()

    def on_top_bar_tab_clicked(self, message: TopBar.TabClicked) -> None:
        self.app.call_later(self.workbench.action_mode, message.mode)

    def on_find_bar_changed(self, message: FindBar.Changed) -> None:
        self.find(message.text)

    def action_copy(self) -> None:
        """Copy the selection, or what the focused panel offers."""
        panel = self._focused_panel()
        self.workbench.copy(self.get_selected_text() or (panel.copy_text() if panel else ""))

    def action_explain(self) -> None:
        """Explain the focused element."""
        panel = self._focused_panel()
        self.explain((panel.topic() if panel else "") or f"screen:{self.mode}")

    def input_step(self, hint: str, current: int, then: Callable[[int], None]) -> None:
        """Ask for a step; one with a sign is counted from the current one."""
        self.input_number(
            "step", hint, lambda text: int(text) + current * text.startswith(("+", "-")), then
        )

    def input_number(
        self,
        title: str,
        hint: str,
        parse: Callable[[str], T],
        then: Callable[[T], None],
        text: str = "",
    ) -> None:
        """Ask for a number, and go on with it."""

        def take(typed: str) -> None:
            try:
                value = parse(typed.replace(",", ""))
            except ValueError:
                self.warn(f"“{typed}” is not such a number.")
            else:
                then(value)

        ask_text(self, title, hint, take, text)

    def explain(self, topic: str) -> None:
        """Show help on a topic."""
        from grpo_tui.app.tui.dialogs.help.screen import HelpScreen

        self.app.push_screen(HelpScreen(self.help_subject(topic), self, self.mode))

    def action_picture(self) -> None:
        """Write the screen as SVG to the folder that the program was started in."""
        if not self.refused():
            self.app.deliver_screenshot(path=".")

    def action_escape(self) -> None:
        """Go back one level: field, search, zoom, screen."""
        bar = self.query_one(FindBar)
        if isinstance(self.focused, Input | TextArea) and not bar.has_focus_within:
            self.set_focus(None)
            self.focus_next(Panel)
        elif bar.display:
            bar.close()
        elif self.maximized is not None:
            self.minimize()
        else:
            self.leave()

    def action_back(self) -> None:
        """Unzoom, or leave the screen."""
        if self.maximized is not None:
            self.minimize()
        else:
            self.leave(quits=True)

    def leave(self, quits: bool = False) -> None:
        """Return to where the user came from, else to the parent; from Runs, quit if `quits`."""
        if self.mode != "runs":
            back, self.previous_mode = self.previous_mode or self.parent_mode, ""
            self.app.call_later(self.workbench.action_mode, back)
        elif quits:
            self.workbench.action_request_quit()
