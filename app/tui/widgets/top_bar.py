"""The top line: the five screens, the shown run and its step."""

from dataclasses import dataclass

from textual import events
from textual.message import Message
from textual.reactive import reactive

from grpo_tui.app.feed.snapshot import Snapshot
from grpo_tui.app.text.safe_text import cell_len, clip
from grpo_tui.app.tui.widgets.pages import name_at, strip_of_titles
from grpo_tui.app.tui.widgets.panel import BarPanel, Line, cells, justified

TABS = {
    "runs": "1 Runs",
    "new_run": "2 New",
    "watch": "3 Watch",
    "rollouts": "4 Rollouts",
    "compare": "5 Compare",
}
MARKS = {
    **dict.fromkeys(("running", "loading"), ("●", "live")),
    "paused": ("‖", "warn"),
    "failed": ("✗", "bad"),
    "error": ("✗", "bad"),
    **dict.fromkeys(("lost", "stalled", "unknown"), ("?", "warn")),
    **dict.fromkeys(("completed", "imported"), ("✓", "good")),
    **dict.fromkeys(("stopped", "aborted"), ("■", "label")),
    "queued": ("◌", "label"),
}


def status_mark(status: str) -> tuple[str, str]:
    """Symbol and colour of a run's state; the symbol alone is enough."""
    return MARKS.get(status, ("○", "label"))


class TopBar(BarPanel):
    """One line at the top of every screen; tabs can be clicked."""

    DEFAULT_CSS = "TopBar { height: 1; dock: top; }"

    @dataclass
    class TabClicked(Message):
        """The app is to switch to a screen."""

        mode: str

    snapshot: reactive[Snapshot] = reactive(Snapshot, always_update=True)
    active: reactive[str] = reactive("")
    mark: reactive[str] = reactive("")

    def paint(self, width: int, height: int) -> list[Line]:  # noqa: ARG002 - the base class has it
        """Tabs on the left, then the run, its alerts and its step on the right."""
        snapshot, head = self.snapshot, self.snapshot.head
        tabs = strip_of_titles(TABS, self.active)
        if snapshot.status == "empty":
            return [tabs]
        count = f"{snapshot.current_step}/{head.total_steps} "
        name, step = head.name or head.id, f"{self.mark}  {count}" if self.mark else f"step {count}"
        if snapshot.reading:
            name, step = head.name, "reading "
        alerts = sum(alert.severity != "info" for alert in snapshot.open_alerts)
        right = [(f"▲{alerts}  " * bool(alerts), "bold warn"), (step, "text")]
        space = width - cells([*tabs, *right]) - 4
        glyph, colour = status_mark("" if snapshot.reading else snapshot.status)
        name = clip(name, space)
        run = [(f" {glyph} ", colour), (name, "headline")]
        subtitle = " · ".join(filter(None, (head.model, head.recipe)))
        if cell_len(subtitle) < space - cell_len(name) - 2:
            run.append((f"  {subtitle}", "label"))
        return [justified([*tabs, *run], right, width)]

    def on_click(self, event: events.Click) -> None:
        """Switch to the screen whose tab was clicked."""
        if mode := name_at(TABS, event.x):
            self.post_message(self.TabClicked(mode))
