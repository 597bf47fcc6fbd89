"""The charts of one run, alone on the screen: what Compare can do, while the run trains."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from textual.app import ComposeResult
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive

from grpo_tui.app.feed.snapshot import Snapshot
from grpo_tui.app.tui.dialogs.export import Writer
from grpo_tui.app.tui.dialogs.picker import Picked
from grpo_tui.app.tui.keys import bind
from grpo_tui.app.tui.messages import ExplainRequested, MetricRequested
from grpo_tui.app.tui.screens.compare.charts import ChartScreen
from grpo_tui.app.tui.screens.compare.curves import CurvesPanel
from grpo_tui.app.tui.screens.compare.render import curves_csv
from grpo_tui.app.tui.screens.compare.state import View
from grpo_tui.app.tui.screens.watch.panels import PhaseBar
from grpo_tui.app.tui.screens.watch.render import function_lines
from grpo_tui.app.tui.screens.watch.state import GUIDES, charts_of, limit_of, reward_chart
from grpo_tui.app.tui.widgets.panel import Bar, Line

POLL_S = 0.5


class Functions(Bar):
    """What became of each reward function, above the chart of the reward."""

    DEFAULT_CSS = "Functions { height: auto; }"

    snapshot: reactive[Snapshot] = reactive(Snapshot, always_update=True)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002 - the base class has it
        """A line for each function; overrides Textual, for `height: auto`."""
        return len(reward_chart(self.snapshot).keys) - 1

    def paint(self, width: int, height: int) -> list[Line]:  # noqa: ARG002 - the base class has it
        return function_lines(self.snapshot, width - 2, curves=True)


class ExploreScreen(ChartScreen):
    """One chart of the watched run, or several with one crosshair."""

    mode = "watch"
    BINDINGS: ClassVar = [
        bind("enter", "explain_metric", "explain metric", "explore.explain",
             "Explain the chosen metric"),
    ]  # fmt: skip

    def __init__(self, run: str, chart: str, *, pick: bool = False) -> None:
        super().__init__()
        self._run, self._first, self._pick = run, chart, pick
        self._only_to_pick = False  # then a list that is left leads back to Watch

    def body(self) -> ComposeResult:
        """Where the step is, and the charts."""
        yield PhaseBar(id="phase")
        yield Functions(id="functions")
        yield CurvesPanel("curves", id="curves")

    def on_mount(self) -> None:
        """Draw the chart that was chosen on Watch, with the others behind it."""
        snapshot = self.workbench.session.state.snapshot() if self.workbench.session else Snapshot()
        self.query_one(Functions).snapshot = snapshot
        keys = tuple(dict.fromkeys(key for one in charts_of(snapshot) for key in one.keys))
        limits = {key: (limit_of(key, snapshot),) for key in GUIDES}
        self.view = replace(View().with_refs((self._run,)), metrics=keys, guides=limits)
        self.choose(self._first)
        self.query_one(CurvesPanel).focus()
        self.key_bar.renamed = {"zoom": "all panels"}
        self.reload()
        self.set_interval(POLL_S, self._poll)

    def on_screen_resume(self) -> None:
        """Read what changed meanwhile."""
        self.reload()

    def watch_view(self, old: View, new: View) -> None:
        """Show what became of the reward functions beside the chart of the reward."""
        super().watch_view(old, new)
        if self.is_mounted:
            functions = self.query_one(Functions)
            of_reward = new.metric in reward_chart(functions.snapshot).keys
            functions.display = new.solo and of_reward

    def choose(self, key: str) -> None:
        """Show a metric alone, whichever it is."""
        metrics = self.view.metrics if key in self.view.metrics else (*self.view.metrics, key)
        self.update(metrics=metrics, chart=metrics.index(key), solo=True)
        self.draw()

    def receive(self, message: Message) -> None:
        """Show the metric that the palette found."""
        if isinstance(message, MetricRequested):
            self.choose(message.key)

    def compare_only(self, refs: Sequence[str]) -> None:
        """Leave: the run is no longer stored."""
        if not refs:
            self.leave()

    def read_more(self) -> None:
        """Offer the metrics, if Watch asked for that."""
        if self._pick:
            self._pick, self._only_to_pick = False, True
            self.action_metrics()

    def _draw_metrics(self, picked: Picked | None) -> None:
        super()._draw_metrics(picked)
        if picked is None and self._only_to_pick:
            self.call_later(self.leave)
        self._only_to_pick = False

    def show(self, snapshot: Snapshot) -> None:
        """Show where the step is; the curves follow the store."""
        self.query_one(PhaseBar).snapshot = snapshot
        self.query_one(Functions).snapshot = snapshot

    def tick(self, now: float) -> None:
        """Update the elapsed time of the phase."""
        self.query_one(PhaseBar).now = now

    def exports(self) -> Mapping[str, Writer]:
        """The curves as CSV."""
        return {"csv": lambda: curves_csv(self.view)} if self.view.comparison is not None else {}

    def action_explain_metric(self) -> None:
        """Explain the metric of the chosen chart."""
        self.post_message(ExplainRequested(self.query_one(CurvesPanel).topic()))

    def action_zoom(self) -> None:
        """Return to all panels."""
        self.leave()

    def leave(self, quits: bool = False) -> None:  # noqa: ARG002 - the base class has it
        """Return to Watch."""
        if self.is_active:
            self.dismiss()
